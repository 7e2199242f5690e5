#include "kernels/cuda/runtime/recording.h"

#include <algorithm>
#include <utility>

namespace annulus::cuda {
namespace {

struct GraphRelease {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct ExecutableRelease {
  void operator()(cudaGraphExec_t executable) const { cudaGraphExecDestroy(executable); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphRelease>;
using Executable = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, ExecutableRelease>;

class GraphRecording final : public Recording {
 public:
  // `nodes`: those that record marks, in the work's order.
  GraphRecording(cudaStream_t stream, LaneClock& clock, std::vector<Event> placeholders, Graph graph,
                 Executable executable, std::vector<cudaGraphNode_t> nodes)
      : stream_(stream),
        clock_(clock),
        placeholders_(std::move(placeholders)),
        graph_(std::move(graph)),
        executable_(std::move(executable)),
        nodes_(std::move(nodes)),
        marks_(nodes_.size()) {}

  // A stream that waits for a mark from now on waits for this launch.
  std::span<const Mark> replay() override {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      marks_[i] = {0, clock_.reserve()};
      check(cudaGraphExecEventRecordNodeSetEvent(executable_.get(), nodes_[i], clock_.event(marks_[i].number)));
    }
    check(cudaGraphLaunch(executable_.get(), stream_));
    return marks_;
  }

 private:
  cudaStream_t stream_;
  LaneClock& clock_;
  std::vector<Event> placeholders_;
  Graph graph_;
  Executable executable_;
  const std::vector<cudaGraphNode_t> nodes_;  // of graph_
  std::vector<Mark> marks_;
};

Graph end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  return Graph(graph);
}

Graph capture(cudaStream_t stream, const std::function<void()>& work) {
  // Other threads, which all-reduce gradients meanwhile, are not restricted.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaGraph_t unfinished = nullptr;
    cudaStreamEndCapture(stream, &unfinished);
    const Graph dropped(unfinished);
    throw;
  }
  return end_capture(stream);
}

// Returns the nodes that record these events, in the events' order.
std::vector<cudaGraphNode_t> nodes_of(const Graph& graph, const std::vector<Event>& events) {
  std::vector<cudaGraphNode_t> found(events.size());
  if (events.empty()) return found;
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph.get(), nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph.get(), nodes.data(), &count));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeEventRecord) continue;
    cudaEvent_t recorded = nullptr;
    check(cudaGraphEventRecordNodeGetEvent(node, &recorded));
    const auto event = std::ranges::find(events, recorded, [](const Event& each) { return each.get(); });
    if (event != events.end()) found[static_cast<std::size_t>(event - events.begin())] = node;
  }
  return found;
}

}  // namespace

std::unique_ptr<Recording> Recorder::record(const std::function<void()>& work) {
  Graph graph = capture(stream_, work);
  std::vector<cudaGraphNode_t> nodes = nodes_of(graph, marks_);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph.get(), 0));
  return std::make_unique<GraphRecording>(stream_, clock_, std::move(marks_), std::move(graph), Executable(executable),
                                          std::move(nodes));
}

void Recorder::mark() {
  check(cudaEventRecordWithFlags(marks_.emplace_back(make_timed_event()).get(), stream_, cudaEventRecordExternal));
}

}  // namespace annulus::cuda
