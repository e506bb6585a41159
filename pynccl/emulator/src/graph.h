#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "graph_user_object.h"
#include "stream.h"

struct CUgraph_st;
struct CUgraphExec_st;

namespace emu {

// One piece of captured work, and what it comes after.
struct GraphNode {
  WorkKind kind;
  int lane;
  std::shared_ptr<const std::function<void()>> work;  // null where there is only order
  std::vector<GraphNode*> after;
  std::vector<Mark> after_enqueued;  // work that was not captured
  std::shared_ptr<Sequence> sequence;  // that it is part of; null for none
};

// Captured work. A lane is the part that one stream captured; nodes stand in the order of their
// capture, so that each comes later than all it depends on. They do not change once the capture
// ended.
struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<int> lane_devices;
  std::vector<races::Access> accesses;  // of all nodes

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // Takes over references to an object of the user's, which then lives as long as the graph and
  // all that was made from it.
  void own(UserObject* object, unsigned references);
  bool disown(UserObject* object, unsigned references);

 private:
  std::mutex mutex_;
  std::map<UserObject*, unsigned> owned_;
};

// A graph to be launched any number of times. Launches of one run one after the other.
class GraphExecution {
 public:
  GraphExecution(std::shared_ptr<const Graph> graph, std::uint64_t flags);
  ~GraphExecution();

  // Returns the text of a race with other work, or of memory that was freed, in which case nothing is
  // launched.
  std::string launch(Stream& stream);
  std::uint64_t flags() const { return flags_; }

 private:
  std::string launch_in_order(Stream& stream);
  void launch_lanes(Stream& stream);

  const std::shared_ptr<const Graph> graph_;
  const std::uint64_t flags_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> lanes_;  // but the first, which the launching stream runs
  Mark last_launch_;
  std::set<std::shared_ptr<Sequence>> sequences_;  // that nodes are part of
};

CUgraph_st* register_graph(const std::shared_ptr<Graph>& graph);
std::shared_ptr<Graph> find_graph(CUgraph_st* handle);
bool unregister_graph(CUgraph_st* handle);

CUgraphExec_st* register_execution(const std::shared_ptr<GraphExecution>& execution);
std::shared_ptr<GraphExecution> find_execution(CUgraphExec_st* handle);
bool unregister_execution(CUgraphExec_st* handle);

}  // namespace emu
