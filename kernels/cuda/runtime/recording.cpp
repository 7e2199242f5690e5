#include "kernels/cuda/runtime/recording.h"

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
  GraphRecording(Executable executable, cudaStream_t stream) : executable_(std::move(executable)), stream_(stream) {}
  void replay() override { check(cudaGraphLaunch(executable_.get(), stream_)); }

 private:
  Executable executable_;
  cudaStream_t stream_;
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

}  // namespace

std::unique_ptr<Recording> record(cudaStream_t stream, const std::function<void()>& work) {
  const Graph graph = capture(stream, work);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph.get(), 0));
  return std::make_unique<GraphRecording>(Executable(executable), stream);
}

}  // namespace annulus::cuda
