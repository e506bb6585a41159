#include "graph_capture.h"

#include <algorithm>
#include <unordered_set>

#include "device_heap.h"

namespace emu {

namespace {

struct OngoingCaptures {
  std::atomic<int> count{0};  // so that no lock is taken where nothing is captured
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> all;
  int global = 0;
};

OngoingCaptures& ongoing() {
  static OngoingCaptures* const captures = new OngoingCaptures;
  return *captures;
}

thread_local CaptureMode mode_of_thread = CaptureMode::global;
thread_local int captures_of_thread = 0;  // that are not relaxed

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Capture::Capture(Stream& origin, CaptureMode mode)
    : id_(next_id()),
      origin_(&origin),
      mode_(mode),
      thread_(std::this_thread::get_id()),
      graph_(std::make_shared<Graph>()) {}

std::shared_ptr<Capture> Capture::begin(Stream& stream, CaptureMode mode) {
  std::shared_ptr<Capture> capture(new Capture(stream, mode));
  if (!stream.join(CapturePoint{capture, 0, {}, {}})) return nullptr;
  register_graph(capture->graph_);  // it can be named while it grows
  if (mode != CaptureMode::relaxed) ++captures_of_thread;
  const std::lock_guard<std::mutex> lock(ongoing().mutex);
  ongoing().all.push_back(capture);
  ongoing().global += mode == CaptureMode::global;
  ongoing().count.store(static_cast<int>(ongoing().all.size()));
  return capture;
}

bool Capture::may_end_here() const {
  return mode_ == CaptureMode::relaxed || thread_ == std::this_thread::get_id();
}

EndOfCapture Capture::end(CUgraph_st** graph) {
  active_.store(false);
  if (mode_ != CaptureMode::relaxed) --captures_of_thread;
  {
    const std::lock_guard<std::mutex> lock(ongoing().mutex);
    auto& all = ongoing().all;
    all.erase(std::remove(all.begin(), all.end(), shared_from_this()), all.end());
    ongoing().global -= mode_ == CaptureMode::global;
    ongoing().count.store(static_cast<int>(all.size()));
  }
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams.swap(streams_);
  }
  std::vector<GraphNode*> last;
  for (const auto& stream : streams) {
    const auto point = stream->leave_capture();
    if (stream.get() == origin_ && point != nullptr) last = point->last;
  }
  if (!spoilt() && all_joined(last)) {
    *graph = handle();
    return EndOfCapture::complete;
  }
  unregister_graph(handle());
  return spoilt() ? EndOfCapture::spoilt : EndOfCapture::unjoined;
}

// Whether the end of the origin's work comes after all that was captured.
bool Capture::all_joined(const std::vector<GraphNode*>& last) const {
  std::unordered_set<const GraphNode*> reached(last.begin(), last.end());
  for (auto node = graph_->nodes.rbegin(); node != graph_->nodes.rend(); ++node) {
    if (reached.count(node->get()) == 0) return false;
    reached.insert((*node)->after.begin(), (*node)->after.end());
  }
  return true;
}

GraphNode* Capture::add(GraphNode node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  graph_->nodes.push_back(std::make_unique<GraphNode>(std::move(node)));
  return graph_->nodes.back().get();
}

void Capture::note_accesses(const races::Access* accesses, std::size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    graph_->accesses.push_back(accesses[i]);
    graph_->accesses.back().in_graph = true;
    graph_->accesses.back().allocation = allocation_at(accesses[i].begin);
  }
}

int Capture::add_stream(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(stream);
  graph_->lane_devices.push_back(stream->device());
  return static_cast<int>(graph_->lane_devices.size()) - 1;
}

bool Capture::includes_blocking_stream_of(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
    return stream->device() == device && stream->kind() == StreamKind::blocking;
  });
}

bool capture_forbids_here() {
  if (mode_of_thread == CaptureMode::relaxed || ongoing().count.load() == 0) return false;
  if (captures_of_thread > 0) return true;
  const std::lock_guard<std::mutex> lock(ongoing().mutex);
  return mode_of_thread == CaptureMode::global && ongoing().global > 0;
}

bool spoil_implicitly_ordered_captures(int device) {
  if (ongoing().count.load() == 0) return false;
  const std::lock_guard<std::mutex> lock(ongoing().mutex);
  bool any = false;
  for (const auto& capture : ongoing().all) {
    if (!capture->includes_blocking_stream_of(device)) continue;
    capture->spoil();
    any = true;
  }
  return any;
}

CaptureMode exchange_capture_mode(CaptureMode mode) {
  const CaptureMode before = mode_of_thread;
  mode_of_thread = mode;
  return before;
}

}  // namespace emu
