#include <algorithm>
#include <cstring>

#include "driver.h"
#include "graph.h"

using namespace emu;

namespace {

CUgraphNode as_handle(const GraphNode* node) {
  return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node));
}

template <class Body>
CUresult graph_call(CUgraph handle, Body&& body) {
  return driver_call([&]() -> CUresult {
    const std::shared_ptr<Graph> graph = find_graph(handle);
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : body(graph);
  });
}

// As the driver: without an array, how many there are; with one, as many as fit.
CUresult give_nodes(const std::vector<const GraphNode*>& nodes, CUgraphNode* handles,
                    std::size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handles != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) {
      handles[i] = i < nodes.size() ? as_handle(nodes[i]) : nullptr;
    }
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec* execution, CUgraph handle, cuuint64_t flags) {
  return graph_call(handle, [&](const std::shared_ptr<Graph>& graph) -> CUresult {
    constexpr cuuint64_t device_launch = 4, known = 15;
    if (execution == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & device_launch) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *execution = register_execution(std::make_shared<GraphExecution>(graph, flags));
    return CUDA_SUCCESS;
  });
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  return stream_call(handle, [&](Stream& stream) -> CUresult {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (stream.kind() == StreamKind::legacy && spoil_implicitly_ordered_captures(stream.device())) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    thread_local std::vector<CUgraphNode> told;  // lives until the thread asks again
    const auto point = stream.capture_point();
    told.clear();
    if (point == nullptr) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    }
    *status = point->capture->spoilt() ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    for (const GraphNode* const node : point->last) told.push_back(as_handle(node));
    if (id != nullptr) *id = point->capture->id();
    if (graph != nullptr) *graph = point->capture->handle();
    if (dependencies != nullptr) *dependencies = told.data();
    if (count != nullptr) *count = told.size();
    return CUDA_SUCCESS;
  });
}

template <class Body>
CUresult object_call(CUuserObject handle, unsigned references, Body&& body) {
  return driver_call([&]() -> CUresult {
    UserObject* const object = UserObject::find(handle);
    return object == nullptr || references == 0 ? CUDA_ERROR_INVALID_VALUE : body(*object);
  });
}

}  // namespace

extern "C" {

CU_API CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return stream_call(handle, [&](Stream& stream) -> CUresult {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream.kind() == StreamKind::legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const auto capture = Capture::begin(stream, static_cast<CaptureMode>(mode));
    return capture == nullptr ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return stream_call(handle, [&](Stream& stream) -> CUresult {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    const auto point = stream.capture_point();
    if (point == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    Capture& capture = *point->capture;
    if (!capture.began_on(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (!capture.may_end_here()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    switch (capture.end(graph)) {
      case EndOfCapture::spoilt:
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      case EndOfCapture::unjoined:
        return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      case EndOfCapture::complete:
        break;
    }
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info(handle, status, nullptr, nullptr, nullptr, nullptr);
}

CU_API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status,
                                          cuuint64_t* id, CUgraph* graph,
                                          const CUgraphNode** dependencies, std::size_t* count) {
  return capture_info(handle, status, id, graph, dependencies, count);
}

CU_API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status,
                                          cuuint64_t* id, CUgraph* graph,
                                          const CUgraphNode** dependencies, const void** edges,
                                          std::size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(handle, status, id, graph, dependencies, count);
}

CU_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return driver_call([&]() -> CUresult {
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
        *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CaptureMode before = exchange_capture_mode(static_cast<CaptureMode>(*mode));
    *mode = static_cast<CUstreamCaptureMode>(before);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  return driver_call([&]() -> CUresult {
    if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = register_graph(std::make_shared<Graph>());
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuGraphDestroy(CUgraph graph) {
  return driver_call([&]() -> CUresult {
    return unregister_graph(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  return graph_call(handle, [&](const std::shared_ptr<Graph>& graph) {
    std::vector<const GraphNode*> all;
    for (const auto& node : graph->nodes) all.push_back(node.get());
    return give_nodes(all, nodes, count);
  });
}

CU_API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  return graph_call(handle, [&](const std::shared_ptr<Graph>& graph) {
    std::vector<const GraphNode*> roots;
    for (const auto& node : graph->nodes) {
      if (node->after.empty()) roots.push_back(node.get());
    }
    return give_nodes(roots, nodes, count);
  });
}

CU_API CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = static_cast<CUgraphNodeType>(reinterpret_cast<const GraphNode*>(handle)->kind);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* execution, CUgraph graph,
                                            unsigned long long flags) {
  return instantiate(execution, graph, flags);
}

CU_API CUresult cuGraphInstantiateWithParams(CUgraphExec* execution, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = nullptr;
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return instantiate(execution, graph, parameters->flags);
}

CU_API CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return driver_call([&]() -> CUresult {
    const auto execution = find_execution(handle);
    if (execution == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = execution->flags();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  return work_call(stream, [&](Stream& found) -> CUresult {
    const auto execution = find_execution(handle);
    if (execution == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (found.capturing()) return CUDA_ERROR_NOT_SUPPORTED;
    return refuse_race(execution->launch(found));
  });
}

CU_API CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  return stream_call(stream, [&](Stream&) {
    return find_execution(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CU_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return driver_call([&]() -> CUresult {
    return unregister_execution(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuUserObjectCreate(CUuserObject* handle, void* data, CUhostFn destroy,
                                   unsigned references, unsigned flags) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr || destroy == nullptr || references == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = UserObject::create(data, destroy, references);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuUserObjectRetain(CUuserObject handle, unsigned references) {
  return object_call(handle, references, [&](UserObject& object) {
    object.retain(references);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuUserObjectRelease(CUuserObject handle, unsigned references) {
  return object_call(handle, references, [&](UserObject& object) {
    return object.release(references) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object_handle,
                                        unsigned references, unsigned flags) {
  return object_call(object_handle, references, [&](UserObject& object) {
    return graph_call(handle, [&](const std::shared_ptr<Graph>& graph) {
      if ((flags & ~CU_GRAPH_USER_OBJECT_MOVE) != 0) return CUDA_ERROR_INVALID_VALUE;
      if (flags == 0) object.retain(references);
      graph->own(&object, references);
      return CUDA_SUCCESS;
    });
  });
}

CU_API CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object_handle,
                                         unsigned references) {
  return object_call(object_handle, references, [&](UserObject& object) {
    return graph_call(handle, [&](const std::shared_ptr<Graph>& graph) {
      return graph->disown(&object, references) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
  });
}

}  // extern "C"

std::vector<DriverFunction> emu::graph_functions() {
  return {
      row<&cuStreamBeginCapture_v2>("cuStreamBeginCapture", 10010),
      row<&cuStreamEndCapture>("cuStreamEndCapture", 10000),
      row<&cuStreamIsCapturing>("cuStreamIsCapturing", 10000),
      row<&cuStreamGetCaptureInfo_v2>("cuStreamGetCaptureInfo", 11030),
      row<&cuStreamGetCaptureInfo_v3>("cuStreamGetCaptureInfo", 12030),
      row<&cuThreadExchangeStreamCaptureMode>("cuThreadExchangeStreamCaptureMode", 10010),
      row<&cuGraphCreate>("cuGraphCreate", 10000),
      row<&cuGraphDestroy>("cuGraphDestroy", 10000),
      row<&cuGraphGetNodes>("cuGraphGetNodes", 10000),
      row<&cuGraphGetRootNodes>("cuGraphGetRootNodes", 10000),
      row<&cuGraphNodeGetType>("cuGraphNodeGetType", 10000),
      row<&cuGraphInstantiateWithFlags>("cuGraphInstantiateWithFlags", 11040),
      row<&cuGraphInstantiateWithParams>("cuGraphInstantiateWithParams", 12000),
      row<&cuGraphExecGetFlags>("cuGraphExecGetFlags", 12000),
      row<&cuGraphLaunch>("cuGraphLaunch", 10000),
      row<&cuGraphUpload>("cuGraphUpload", 11010),
      row<&cuGraphExecDestroy>("cuGraphExecDestroy", 10000),
      row<&cuUserObjectCreate>("cuUserObjectCreate", 11030),
      row<&cuUserObjectRetain>("cuUserObjectRetain", 11030),
      row<&cuUserObjectRelease>("cuUserObjectRelease", 11030),
      row<&cuGraphRetainUserObject>("cuGraphRetainUserObject", 11030),
      row<&cuGraphReleaseUserObject>("cuGraphReleaseUserObject", 11030),
  };
}
