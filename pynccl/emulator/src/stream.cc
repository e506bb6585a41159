#include "stream.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "board.h"
#include "graph_capture.h"

namespace emu {

namespace {

constexpr std::uint64_t everything = ~std::uint64_t{0};
// A few microseconds: longer than a small piece of work, shorter than a time slice that another
// thread could use.
constexpr int spins = 100;
// So soon after a launch comes who waits for it at once.
constexpr std::chrono::microseconds promptly{100};
constexpr int enough_prompt_waits = 8;
constexpr int prompt_waits_lacking = -100;  // after work was left that nobody came for
constexpr std::chrono::milliseconds between_looks{1};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

struct DeviceStreams {
  std::mutex mutex;
  std::shared_ptr<Stream> legacy;
  std::atomic<Stream*> legacy_made{nullptr};
  std::vector<std::shared_ptr<Stream>> others;  // that are open or have work to do
};

// Never destroyed: threads may still run work while the process ends.
DeviceStreams& streams_of(int device) {
  static DeviceStreams* const all = new DeviceStreams[std::max(device_count(), 1)];
  return all[device];
}

struct Handles {
  std::mutex mutex;
  std::unordered_map<CUstream_st*, std::shared_ptr<Stream>> live;
};

Handles& handles() {
  static Handles* const all = new Handles;
  return *all;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{2};  // 1 and 2 are the default streams' handles
  return ++last;
}

struct OwnStreams {
  std::unordered_map<int, std::shared_ptr<Stream>> of_device;
  ~OwnStreams() {
    if (in_forked_child()) return;
    for (auto& [device, stream] : of_device) stream->close();
  }
};

thread_local OwnStreams own_streams;
thread_local bool per_thread_default = false;

bool is_users(WorkKind kind) { return kind == WorkKind::host || kind == WorkKind::graph; }

std::vector<std::shared_ptr<Stream>> streams_but_legacy(int device) {
  const std::lock_guard<std::mutex> lock(streams_of(device).mutex);
  return streams_of(device).others;
}

}  // namespace

bool Mark::reached() const {
  return stream == nullptr || captured != nullptr || stream->has_run(position);
}

void Mark::wait() const {
  if (!reached()) stream->wait_until(position, nullptr);
  host_saw();
}

bool Mark::wait_for(std::chrono::milliseconds limit) const {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  if (!reached() && !stream->wait_until(position, &deadline)) return false;
  host_saw();
  return true;
}

void Mark::host_saw() const {
  if (stream == nullptr || captured != nullptr || !costly_checks()) return;
  races::host_saw(stream->id(), position, known);
}

Stream::Stream(int device, StreamKind kind, int priority)
    : device_(device), kind_(kind), priority_(priority), id_(next_id()) {}

Stream::~Stream() {
  if (costly_checks()) races::forget_stream(id_);
}

std::shared_ptr<Stream> Stream::create(int device, StreamKind kind, int priority) {
  std::shared_ptr<Stream> stream(new Stream(device, kind, priority));
  DeviceStreams& streams = streams_of(device);
  const std::lock_guard<std::mutex> lock(streams.mutex);
  if (kind == StreamKind::legacy) {
    streams.legacy = stream;
    streams.legacy_made.store(stream.get(), std::memory_order_release);
  } else {
    streams.others.push_back(stream);
  }
  return stream;
}

std::shared_ptr<Stream> Stream::legacy(int device) {
  DeviceStreams& streams = streams_of(device);
  if (Stream* const made = streams.legacy_made.load(std::memory_order_acquire)) {
    return made->shared_from_this();
  }
  static std::mutex making;
  const std::lock_guard<std::mutex> lock(making);
  if (streams.legacy_made.load(std::memory_order_acquire) != nullptr) return streams.legacy;
  return create(device, StreamKind::legacy, 0);
}

std::shared_ptr<Stream> Stream::per_thread(int device) {
  std::shared_ptr<Stream>& own = own_streams.of_device[device];
  if (own == nullptr) own = create(device, StreamKind::blocking, 0);
  return own;
}

// What CUDA's rules for the legacy default stream put before new work of this one.
std::vector<Mark> Stream::implicitly_after() const {
  std::vector<Mark> marks;
  const auto add = [&](Stream& other) {
    const std::uint64_t position = other.enqueued_.load();
    if (!other.has_run(position)) marks.push_back(Mark{other.shared_from_this(), position, nullptr});
  };
  if (kind_ == StreamKind::blocking) {
    Stream* const legacy = streams_of(device_).legacy_made.load(std::memory_order_acquire);
    if (legacy != nullptr) add(*legacy);
  } else if (kind_ == StreamKind::legacy) {
    for (const auto& other : streams_but_legacy(device_)) {
      if (other->kind_ == StreamKind::blocking) add(*other);
    }
  }
  return marks;
}

// The same rules, whether or not the work that they put before has run by now.
races::Known Stream::come() {
  if (!costly_checks()) return nullptr;
  if (kind_ == StreamKind::legacy) {
    const auto others = streams_but_legacy(device_);
    races::Coming next(place_);
    for (const auto& other : others) {
      if (other->kind_ != StreamKind::blocking) continue;
      next.after(other->id_, other->enqueued_.load(), other->place_);
    }
    return next.known();
  }
  Stream* const legacy = kind_ == StreamKind::blocking
                             ? streams_of(device_).legacy_made.load(std::memory_order_acquire)
                             : nullptr;
  races::Coming next(place_);
  if (legacy != nullptr) next.after(legacy->id_, legacy->enqueued_.load(), legacy->place_);
  return next.known();
}

Mark Stream::enqueue(std::function<void()> work, WorkKind kind) {
  Mark mark;
  if (capturing() && capture(work, kind, &mark)) return mark;
  return push(Item{std::move(work), implicitly_after(), nullptr, kind});
}

Mark Stream::enqueue(std::shared_ptr<Steps> steps, const std::shared_ptr<Sequence>& sequence) {
  Mark mark;
  if (capturing()) {
    std::function<void()> work = [steps] { steps->run_anew(); };
    if (capture(work, WorkKind::kernel, &mark, sequence)) return mark;
  }
  return push(Item{nullptr, implicitly_after(), std::move(steps)});
}

bool Stream::wait_for(const Mark& mark) {
  if (mark.captured != nullptr || capturing()) return capture_wait(mark);
  if (mark.stream.get() == this || mark.stream == nullptr) return true;
  if (costly_checks()) races::Coming(place_).after(mark.stream->id_, mark.position, mark.known);
  if (mark.reached()) return true;
  Item item{nullptr, implicitly_after()};
  item.after.push_back(mark);
  push(std::move(item));
  return true;
}

// False where the capture has ended meanwhile.
bool Stream::capture(std::function<void()>& work, WorkKind kind, Mark* mark,
                     const std::shared_ptr<Sequence>& sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_point_ == nullptr) return false;
  const auto point = std::make_shared<CapturePoint>(*capture_point_);
  auto kept = work == nullptr
                  ? nullptr
                  : std::make_shared<const std::function<void()>>(std::move(work));
  GraphNode* const node = point->capture->add(
      GraphNode{kind, point->lane, std::move(kept), point->last, point->last_enqueued, sequence});
  point->last = {node};
  point->last_enqueued.clear();
  capture_point_ = point;
  *mark = Mark{shared_from_this(), 0, capture_point_};
  return true;
}

bool Stream::capture_wait(const Mark& mark) {
  if (mark.captured != nullptr) {
    const CapturePoint& other = *mark.captured;
    if (!other.capture->active()) return true;  // its graph is complete: nothing is ahead of us
    if (!capturing()) {
      join(CapturePoint{other.capture, 0, {}, {}});
    } else if (capture_point()->capture != other.capture) {
      return false;
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_point_ == nullptr) return true;
  const auto point = std::make_shared<CapturePoint>(*capture_point_);
  if (mark.captured == nullptr) {
    point->last_enqueued.push_back(mark);
  } else {
    for (GraphNode* const node : mark.captured->last) {
      const bool known = std::count(point->last.begin(), point->last.end(), node) != 0;
      if (!known) point->last.push_back(node);
    }
    point->last_enqueued.insert(point->last_enqueued.end(), mark.captured->last_enqueued.begin(),
                                mark.captured->last_enqueued.end());
  }
  capture_point_ = point;
  return true;
}

bool Stream::join(CapturePoint point) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_point_ != nullptr) return false;
  point.lane = point.capture->add_stream(shared_from_this());
  capture_point_ = std::make_shared<const CapturePoint>(std::move(point));
  capturing_.store(true);
  return true;
}

std::shared_ptr<const CapturePoint> Stream::capture_point() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return capture_point_;
}

std::shared_ptr<const CapturePoint> Stream::leave_capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  capturing_.store(false);
  return std::move(capture_point_);
}

Mark Stream::tail() {
  if (capturing()) {
    if (auto point = capture_point()) return Mark{shared_from_this(), 0, std::move(point)};
  }
  // The legacy stream's end includes what it would have to wait for.
  if (kind_ == StreamKind::legacy) return next();
  return Mark{shared_from_this(), enqueued_.load(), nullptr, races::known_to(place_)};
}

Mark Stream::next() {
  if (capturing()) return tail();
  if (!implicitly_after().empty()) return enqueue(nullptr);
  return Mark{shared_from_this(), enqueued_.load(), nullptr, come()};
}

std::vector<Mark> Stream::pending(int device) {
  std::vector<std::shared_ptr<Stream>> streams = streams_but_legacy(device);
  streams.push_back(legacy(device));
  std::vector<Mark> marks;
  for (auto& stream : streams) {
    const std::uint64_t position = stream->enqueued_.load();
    if (!stream->has_run(position)) marks.push_back(Mark{std::move(stream), position, nullptr});
  }
  return marks;
}

bool Stream::idle() const { return has_run(enqueued_.load()) && implicitly_after().empty(); }

Mark Stream::push(Item item) {
  set_host_state(HostState::active);
  note_step();
  races::Known known = come();
  item.known = known;
  std::unique_lock<std::mutex> lock(mutex_);
  if (queue_.empty()) pushed_at_ = std::chrono::steady_clock::now();
  const bool left = leave_to_waiter(item);
  queue_.push_back(std::move(item));
  const std::uint64_t position = enqueued_.fetch_add(1) + 1;
  if (!left) wake_an_executor(lock);
  return Mark{shared_from_this(), position, nullptr, std::move(known)};
}

// Whether the new item is done by a thread that is sure to wait for it.
bool Stream::leave_to_waiter(const Item& item) {
  if (prompt_waits_ < enough_prompt_waits || item.steps == nullptr || waiters_ > 0 || !worker_alive_) {
    return false;
  }
  if (!worker_watches_) {
    if (!queue_.empty()) return false;
    worker_watches_ = true;
    worker_bell_.notify_one();
  }
  return true;
}

// A thread has come to wait.
void Stream::note_wait() {
  if (!waiter_can_run()) return;
  const bool prompt = std::chrono::steady_clock::now() - pushed_at_ < promptly;
  prompt_waits_ = prompt ? std::min(prompt_waits_ + 1, enough_prompt_waits) : 0;
}

Mark Stream::perform(const std::function<void()>& work, WorkKind kind) {
  Mark mark;
  if (try_now(work, &mark)) return mark;
  return enqueue(work, kind);
}

bool Stream::try_now(const std::function<void()>& work, Mark* mark) {
  if (capturing() || !implicitly_after().empty()) return false;
  races::Known known = come();
  std::unique_lock<std::mutex> lock(mutex_);
  if (executing_ || !queue_.empty()) return false;
  executing_ = true;
  const std::uint64_t position = enqueued_.fetch_add(1) + 1;
  lock.unlock();
  work();
  lock.lock();
  finish_item(lock);
  executing_ = false;
  wake_an_executor(lock);
  *mark = Mark{shared_from_this(), position, nullptr, std::move(known)};
  return true;
}

bool Stream::wait_until(std::uint64_t position, const Deadline* deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  note_wait();
  while (!has_run(position)) {
    if (deadline != nullptr && std::chrono::steady_clock::now() >= *deadline) break;
    if (waiter_can_run()) {
      run(lock, position, deadline != nullptr);
      continue;
    }
    if (blocked_) {
      const Mark blocker = blocker_;
      lock.unlock();
      if (!blocker.reached()) blocker.stream->wait_until(blocker.position, deadline);
      lock.lock();
      // Here before the blocker's executor has come to tell.
      if (blocked_ && blocker_.reached()) blocked_ = false;
      continue;
    }
    lock.unlock();
    for (int i = 0; i < spins && !has_run(position); ++i) pause();
    lock.lock();
    if (has_run(position) || waiter_can_run() || blocked_) continue;
    ++waiters_;
    if (deadline == nullptr) {
      set_host_state(HostState::waiting);
      waiters_bell_.wait(lock);
      set_host_state(HostState::active);
    } else {
      waiters_bell_.wait_until(lock, *deadline);
    }
    --waiters_;
  }
  // A call to run what comes next may have gone to this thread alone.
  wake_an_executor(lock);
  return has_run(position);
}

void Stream::run(std::unique_lock<std::mutex>& lock, std::uint64_t until, bool hurried) {
  executing_ = true;
  while (!queue_.empty() && !has_run(until)) {
    if (find_blocked(lock)) break;
    // Nobody knows how long a user's function or graph takes: not for a thread with a deadline.
    if (hurried && is_users(queue_.front().kind)) {
      for_worker_ = true;
      break;
    }
    if (!run_first(lock, until == everything)) break;
    finish_item(lock);
  }
  executing_ = false;
  if (until != everything) wake_an_executor(lock);
}

bool Stream::perform_item(const Item& item, bool may_block) {
  const InWork scope;
  if (item.steps != nullptr) return item.steps->advance(may_block);
  if (item.work) item.work();
  return true;
}

// False where the item was begun only, and waits in its place for a thread that may block.
bool Stream::run_first(std::unique_lock<std::mutex>& lock, bool may_block) {
  Item item = std::move(queue_.front());
  queue_.pop_front();
  const std::uint64_t position = completed_.load() + 1;
  lock.unlock();
  // What it finds done it may tell the host's threads.
  if (item.kind == WorkKind::host && costly_checks()) {
    races::host_saw(id_, position, item.known);
  }
  const bool done = perform_item(item, may_block);
  if (done) item = Item{};
  lock.lock();
  for_worker_ = !done;
  if (!done) queue_.push_front(std::move(item));
  return done;
}

// Whether the first item has to wait. Gives up the lock on the way, not the executor's role.
bool Stream::find_blocked(std::unique_lock<std::mutex>& lock) {
  std::vector<Mark>& after = queue_.front().after;
  while (!after.empty()) {
    if (after.back().reached()) {
      after.pop_back();
      continue;
    }
    blocker_ = after.back();
    blocked_ = true;
    lock.unlock();
    const bool waits = blocker_.stream->subscribe(blocker_.position, shared_from_this());
    lock.lock();
    if (!waits) blocked_ = false;
    if (blocked_) {
      // Whoever waits for this stream may do the blocker's work.
      if (waiters_ > 0) waiters_bell_.notify_all();
      return true;
    }
  }
  blocker_ = Mark{};
  return false;
}

void Stream::finish_item(std::unique_lock<std::mutex>& lock) {
  completed_.fetch_add(1);
  note_step();
  if (waiters_ > 0) waiters_bell_.notify_all();
  if (subscribers_.empty()) return;
  std::vector<std::shared_ptr<Stream>> waiting;
  for (std::size_t i = 0; i < subscribers_.size();) {
    if (has_run(subscribers_[i].first)) {
      waiting.push_back(std::move(subscribers_[i].second));
      subscribers_[i] = std::move(subscribers_.back());
      subscribers_.pop_back();
    } else {
      ++i;
    }
  }
  if (waiting.empty()) return;
  lock.unlock();
  for (const auto& stream : waiting) stream->unblock();
  waiting.clear();
  lock.lock();
}

void Stream::wake_an_executor(std::unique_lock<std::mutex>& lock) {
  if (closed_ && queue_.empty() && !executing_) {
    if (worker_alive_) {
      worker_bell_.notify_one();
    } else {
      forget();
    }
  }
  if (!can_run()) return;
  if (waiters_ > 0 && !for_worker_) {
    waiters_bell_.notify_all();
  } else if (worker_alive_) {
    worker_watches_ = false;
    worker_bell_.notify_one();
  } else {
    worker_alive_ = true;
    try {
      std::thread([self = shared_from_this()] { self->work_loop(); }).detach();
    } catch (const std::system_error&) {
      // No thread to be had: the work is done here.
      worker_alive_ = false;
      run(lock, everything);
    }
  }
}

bool Stream::subscribe(std::uint64_t position, const std::shared_ptr<Stream>& waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_run(position)) return false;
  subscribers_.emplace_back(position, waiting);
  return true;
}

void Stream::unblock() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!blocked_ || !blocker_.reached()) return;
  blocked_ = false;
  wake_an_executor(lock);
}

void Stream::work_loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!(closed_ && queue_.empty())) {
    if (worker_watches_) {
      watch(lock);
    } else if (can_run()) {
      run(lock, everything);
    } else {
      worker_bell_.wait(lock);
    }
  }
  worker_alive_ = false;
  forget();
}

void Stream::watch(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t completed = completed_, enqueued = enqueued_;
  const bool idle = queue_.empty();
  worker_bell_.wait_for(lock, between_looks);
  if (!worker_watches_) return;
  if (completed == completed_ && !idle && can_run()) {
    prompt_waits_ = prompt_waits_lacking;
    worker_watches_ = false;
  } else if (enqueued == enqueued_) {
    worker_watches_ = false;
  }
}

// The device's list lets go of a closed stream only when its work is done, so that who waits for
// the device waits for that.
void Stream::forget() {
  DeviceStreams& streams = streams_of(device_);
  const std::lock_guard<std::mutex> lock(streams.mutex);
  auto& others = streams.others;
  others.erase(std::remove(others.begin(), others.end(), shared_from_this()), others.end());
}

void Stream::close() {
  // The default stream's work comes after this one's, also when that has been forgotten.
  if (kind_ == StreamKind::blocking && costly_checks()) {
    Stream& first = *legacy(device_);
    races::Coming(first.place_).after(id_, enqueued_.load(), place_);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  wake_an_executor(lock);
}

std::shared_ptr<Stream> find_stream(CUstream_st* handle) {
  const bool default_stream = reinterpret_cast<std::uintptr_t>(handle) <= 2;
  const int device = default_stream ? current_device() : 0;
  return device < 0 ? nullptr : find_stream_of(device, handle);
}

std::shared_ptr<Stream> find_stream_of(int device, CUstream_st* handle) {
  if (in_forked_child()) return nullptr;
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value <= 2) {
    const bool own = value == 2 || (value == 0 && per_thread_default);
    return own ? Stream::per_thread(device) : Stream::legacy(device);
  }
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().live.find(handle);
  return found == handles().live.end() ? nullptr : found->second;
}

CUstream_st* register_stream(const std::shared_ptr<Stream>& stream) {
  auto* const handle = reinterpret_cast<CUstream_st*>(stream.get());
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().live[handle] = stream;
  return handle;
}

std::shared_ptr<Stream> unregister_stream(CUstream_st* handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().live.find(handle);
  if (found == handles().live.end()) return nullptr;
  const std::shared_ptr<Stream> stream = found->second;
  handles().live.erase(found);
  return stream;
}

PerThreadDefault::PerThreadDefault() : before_(per_thread_default) { per_thread_default = true; }

PerThreadDefault::~PerThreadDefault() { per_thread_default = before_; }

}  // namespace emu
