#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "graph.h"

namespace emu {

// As CUstreamCaptureMode: which calls a capture forbids, and to which threads.
enum class CaptureMode { global = 0, thread_local_only = 1, relaxed = 2 };

enum class EndOfCapture { complete, spoilt, unjoined };

// The recording of streams' work into a graph, from the beginning on one stream to the end there.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  // Null where the stream is capturing already.
  static std::shared_ptr<Capture> begin(Stream& stream, CaptureMode mode);
  EndOfCapture end(CUgraph_st** graph);

  std::uint64_t id() const { return id_; }
  bool began_on(const Stream& stream) const { return origin_ == &stream; }
  bool may_end_here() const;
  CUgraph_st* handle() const { return reinterpret_cast<CUgraph_st*>(graph_.get()); }

  GraphNode* add(GraphNode node);
  void note_accesses(const races::Access* accesses, std::size_t count);
  // Takes in one more stream and returns its lane.
  int add_stream(const std::shared_ptr<Stream>& stream);

  // Something that a graph cannot hold happened: the capture is to end with an error.
  void spoil() { spoilt_.store(true); }
  bool spoilt() const { return spoilt_.load(); }
  bool active() const { return active_.load(); }
  bool includes_blocking_stream_of(int device);

 private:
  Capture(Stream& origin, CaptureMode mode);
  bool all_joined(const std::vector<GraphNode*>& last) const;

  const std::uint64_t id_;
  const Stream* const origin_;
  const CaptureMode mode_;
  const std::thread::id thread_;
  const std::shared_ptr<Graph> graph_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::atomic<bool> spoilt_{false};
  std::atomic<bool> active_{true};
};

// Where a stream's capture stands: what work captured next comes after.
struct CapturePoint {
  std::shared_ptr<Capture> capture;
  int lane = 0;
  std::vector<GraphNode*> last;
  std::vector<Mark> last_enqueued;  // waited for, not captured
};

// Whether a capture forbids the calling thread what could disturb it.
bool capture_forbids_here();
// Spoils the captures that work on the device's legacy default stream would have to come after.
bool spoil_implicitly_ordered_captures(int device);
CaptureMode exchange_capture_mode(CaptureMode mode);

}  // namespace emu
