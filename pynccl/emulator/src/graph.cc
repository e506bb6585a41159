#include "graph.h"

#include <algorithm>
#include <unordered_map>

namespace emu {

namespace {

template <class Handle, class Object>
class Registry {
 public:
  Handle* add(const std::shared_ptr<Object>& object) {
    auto* const handle = reinterpret_cast<Handle*>(object.get());
    const std::lock_guard<std::mutex> lock(mutex_);
    live_[handle] = object;
    return handle;
  }

  std::shared_ptr<Object> find(Handle* handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(handle);
    return found == live_.end() ? nullptr : found->second;
  }

  bool remove(Handle* handle) {
    std::shared_ptr<Object> object;  // ends after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(handle);
    if (found == live_.end()) return false;
    object = std::move(found->second);
    live_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle*, std::shared_ptr<Object>> live_;
};

Registry<CUgraph_st, Graph>& graphs() {
  static auto* const all = new Registry<CUgraph_st, Graph>;
  return *all;
}

Registry<CUgraphExec_st, GraphExecution>& executions() {
  static auto* const all = new Registry<CUgraphExec_st, GraphExecution>;
  return *all;
}

void run_in_order(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    if (node->work != nullptr) (*node->work)();
  }
}

}  // namespace

Graph::~Graph() {
  for (const auto& [object, references] : owned_) object->release(references);
}

void Graph::own(UserObject* object, unsigned references) {
  const std::lock_guard<std::mutex> lock(mutex_);
  owned_[object] += references;
}

bool Graph::disown(UserObject* object, unsigned references) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto owned = owned_.find(object);
    if (owned == owned_.end() || owned->second < references) return false;
    owned->second -= references;
    if (owned->second == 0) owned_.erase(owned);
  }
  return object->release(references);
}

GraphExecution::GraphExecution(std::shared_ptr<const Graph> graph, std::uint64_t flags)
    : graph_(std::move(graph)), flags_(flags) {
  for (std::size_t lane = 1; lane < graph_->lane_devices.size(); ++lane) {
    lanes_.push_back(Stream::create(graph_->lane_devices[lane], StreamKind::nonblocking, 0));
  }
  for (const auto& node : graph_->nodes) {
    if (node->sequence != nullptr) sequences_.insert(node->sequence);
  }
}

GraphExecution::~GraphExecution() {
  for (const auto& lane : lanes_) lane->close();
}

std::string GraphExecution::launch(Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& sequence : sequences_) {
    locks.emplace_back(sequence->mutex);
    stream.wait_for(sequence->last);
  }
  std::string race = launch_in_order(stream);
  if (!race.empty()) return race;
  for (const auto& sequence : sequences_) sequence->last = last_launch_;
  return {};
}

std::string GraphExecution::launch_in_order(Stream& stream) {
  stream.wait_for(last_launch_);
  for (const auto& node : graph_->nodes) {
    for (const Mark& mark : node->after_enqueued) stream.wait_for(mark);
  }
  std::string freed = races::freed_since(graph_->accesses);
  if (!freed.empty()) return freed;
  std::string race = races::use(stream, graph_->accesses.data(), graph_->accesses.size());
  if (!race.empty()) return race;
  if (lanes_.empty()) {
    const auto& nodes = graph_->nodes;
    const bool any_host = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
      return node->kind == WorkKind::host;
    });
    last_launch_ = stream.enqueue([graph = graph_] { run_in_order(*graph); },
                                  any_host ? WorkKind::host : WorkKind::graph);
  } else {
    launch_lanes(stream);
  }
  return {};
}

// Branches run side by side: they may wait for one another, as collectives do.
void GraphExecution::launch_lanes(Stream& stream) {
  const Mark start = stream.tail();
  const auto lane_of = [&](const GraphNode& node) -> Stream& {
    return node.lane == 0 ? stream : *lanes_[node.lane - 1];
  };
  for (const auto& lane : lanes_) lane->wait_for(start);
  std::unordered_map<const GraphNode*, Mark> launched;
  for (const auto& node : graph_->nodes) {
    Stream& lane = lane_of(*node);
    for (const GraphNode* before : node->after) {
      if (before->lane != node->lane) lane.wait_for(launched[before]);
    }
    if (node->work == nullptr) {
      launched[node.get()] = lane.tail();
    } else {
      const WorkKind kind = node->kind == WorkKind::host ? WorkKind::host : WorkKind::graph;
      launched[node.get()] = lane.enqueue([work = node->work] { (*work)(); }, kind);
    }
  }
  for (const auto& lane : lanes_) stream.wait_for(lane->tail());
  last_launch_ = stream.tail();
}

CUgraph_st* register_graph(const std::shared_ptr<Graph>& graph) { return graphs().add(graph); }

std::shared_ptr<Graph> find_graph(CUgraph_st* handle) { return graphs().find(handle); }

bool unregister_graph(CUgraph_st* handle) { return graphs().remove(handle); }

CUgraphExec_st* register_execution(const std::shared_ptr<GraphExecution>& execution) {
  return executions().add(execution);
}

std::shared_ptr<GraphExecution> find_execution(CUgraphExec_st* handle) {
  return executions().find(handle);
}

bool unregister_execution(CUgraphExec_st* handle) { return executions().remove(handle); }

}  // namespace emu
