#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device.h"
#include "races.h"

struct CUstream_st;

namespace emu {

class Stream;
struct CapturePoint;

// A place in a stream's work: reached when everything enqueued before it has run. In a stream that
// captures, a place in the graph: there to be waited for by other streams alone.
struct EMU_API Mark {
  std::shared_ptr<Stream> stream;
  std::uint64_t position = 0;
  std::shared_ptr<const CapturePoint> captured = nullptr;
  races::Known known = nullptr;  // what has run before, as the check for races counts
  bool reached() const;
  void wait() const;
  // Waits so long at most; whether the place was reached.
  bool wait_for(std::chrono::milliseconds limit) const;
  // The host knows that it was reached.
  void host_saw() const;
};

// Work that runs one piece after the other, in whichever streams and graphs: a communicator's.
struct Sequence {
  std::mutex mutex;
  Mark last;  // of what was launched
};

// What a graph says that its nodes are: values of CUgraphNodeType.
enum class WorkKind { kernel = 0, memcpy = 1, memset = 2, host = 3, graph = 4, empty = 5 };

enum class StreamKind { legacy, blocking, nonblocking };

// Work that waits for other processes, and that runs as far as it can whenever it is asked to.
class Steps {
 public:
  virtual ~Steps() = default;
  // Whether it is done. A host thread that runs it while waiting for the stream passes false, which
  // asks for patience of some milliseconds only.
  virtual bool advance(bool may_block) = 0;
  // All of it from the start, however far it has come: for a launch of the graph that holds it.
  virtual void run_anew() const = 0;
};

// A queue of work that one thread runs in order. The legacy default stream keeps CUDA's ordering
// rules with the other streams of its device; enqueue() and wait_for() apply them by themselves.
//
// Whoever holds the executor's role runs the work: the stream's own thread, started when work first
// has to wait for one, or a thread that waits for the stream and would idle otherwise. No lock is
// held while work runs.
class EMU_API Stream : public std::enable_shared_from_this<Stream> {
 public:
  ~Stream();
  int device() const { return device_; }
  // Appends work and returns at once. The work must not throw, and may be run again where the
  // stream is captured into a graph.
  Mark enqueue(std::function<void()> work, WorkKind kind = WorkKind::kernel);
  // The same. Where it is captured, a launch of the graph goes into the sequence.
  Mark enqueue(std::shared_ptr<Steps> steps, const std::shared_ptr<Sequence>& sequence);
  // Work enqueued from now on starts only when `mark` is reached. A mark of a capture takes this
  // stream into the capture; false where another one holds it.
  bool wait_for(const Mark& mark);
  // After the work enqueued so far.
  Mark tail();
  // Where an event recorded now would be: also after what the default stream's rules put before it.
  Mark next();

  static std::shared_ptr<Stream> create(int device, StreamKind kind, int priority);
  static std::shared_ptr<Stream> legacy(int device);
  // The calling thread's own default stream, closed when the thread ends.
  static std::shared_ptr<Stream> per_thread(int device);

  // The ends of all streams of the device that have work to do.
  static std::vector<Mark> pending(int device);

  StreamKind kind() const { return kind_; }
  int priority() const { return priority_; }
  std::uint64_t id() const { return id_; }

  // As enqueue(), but runs the work in this call where nothing has to come before it: for work that
  // takes less time than waking a thread, or whose end the caller waits for anyway.
  Mark perform(const std::function<void()>& work, WorkKind kind = WorkKind::kernel);
  // The same where that can be, else nothing at all.
  bool try_now(const std::function<void()>& work, Mark* mark);
  // Whether all work enqueued so far, and all that it comes after, has run.
  bool idle() const;

  // From now on work is not run but added to the graph. False where it is already.
  bool join(CapturePoint point);
  // Null while the stream does not capture.
  std::shared_ptr<const CapturePoint> capture_point() const;
  bool capturing() const { return capturing_.load(); }
  std::shared_ptr<const CapturePoint> leave_capture();

  // For the check for races: what the next item comes after, and where it will be.
  races::Known come();
  std::uint64_t next_position() const { return enqueued_.load() + 1; }

  // No more work comes. What is queued still runs; then the thread ends.
  void close();

 private:
  friend struct Mark;

  struct Item {
    std::function<void()> work;
    std::vector<Mark> after;
    std::shared_ptr<Steps> steps = nullptr;
    WorkKind kind = WorkKind::kernel;
    races::Known known = nullptr;
  };

  Stream(int device, StreamKind kind, int priority);

  std::vector<Mark> implicitly_after() const;
  bool has_run(std::uint64_t position) const { return completed_.load() >= position; }
  Mark push(Item item);
  bool leave_to_waiter(const Item& item);
  void note_wait();
  bool capture(std::function<void()>& work, WorkKind kind, Mark* mark,
               const std::shared_ptr<Sequence>& sequence = nullptr);
  bool capture_wait(const Mark& mark);
  using Deadline = std::chrono::steady_clock::time_point;
  // False where the deadline came first.
  bool wait_until(std::uint64_t position, const Deadline* deadline);

  // With the lock held.
  void run(std::unique_lock<std::mutex>& lock, std::uint64_t until, bool hurried = false);
  bool run_first(std::unique_lock<std::mutex>& lock, bool may_block);
  static bool perform_item(const Item& item, bool may_block);
  bool find_blocked(std::unique_lock<std::mutex>& lock);
  void finish_item(std::unique_lock<std::mutex>& lock);
  void wake_an_executor(std::unique_lock<std::mutex>& lock);
  void forget();
  bool can_run() const { return !executing_ && !blocked_ && !queue_.empty(); }
  bool waiter_can_run() const { return can_run() && !for_worker_; }

  bool subscribe(std::uint64_t position, const std::shared_ptr<Stream>& waiting);
  void unblock();
  void work_loop();
  void watch(std::unique_lock<std::mutex>& lock);

  const int device_;
  const StreamKind kind_;
  const int priority_;
  const std::uint64_t id_;
  races::Place place_;

  mutable std::mutex mutex_;
  std::condition_variable worker_bell_;
  std::condition_variable waiters_bell_;
  std::deque<Item> queue_;
  std::atomic<std::uint64_t> enqueued_{0};
  std::atomic<std::uint64_t> completed_{0};
  bool executing_ = false;  // some thread holds the executor's role
  bool blocked_ = false;    // the first item waits for blocker_
  Mark blocker_;
  bool for_worker_ = false;  // the first item was begun, and needs a thread that may block
  bool worker_alive_ = false;
  // A thread that waits for each launch at once does the work by itself, and to wake the worker too
  // would only be in its way: the worker then watches from time to time, for work nobody came for.
  bool worker_watches_ = false;
  int prompt_waits_ = 0;  // in a row
  std::chrono::steady_clock::time_point pushed_at_{};  // the first item of the queue
  bool closed_ = false;
  int waiters_ = 0;
  std::atomic<bool> capturing_{false};
  std::shared_ptr<const CapturePoint> capture_point_;
  // Streams whose first item waits for a position of this one.
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Stream>>> subscribers_;
};

// Resolves a driver handle, also 0/1 (legacy) and 2 (per-thread) for the calling thread's device.
// Null for a handle that is no live stream.
EMU_API std::shared_ptr<Stream> find_stream(CUstream_st* handle);
// The same for another device than the current one.
std::shared_ptr<Stream> find_stream_of(int device, CUstream_st* handle);

CUstream_st* register_stream(const std::shared_ptr<Stream>& stream);
// The stream that the handle named until now; null where it named none.
std::shared_ptr<Stream> unregister_stream(CUstream_st* handle);

// While alive, the handle 0 means the per-thread default stream to the calling thread.
class PerThreadDefault {
 public:
  PerThreadDefault();
  ~PerThreadDefault();

 private:
  const bool before_;
};

}  // namespace emu
