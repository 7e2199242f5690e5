#include "kernels/cuda/ops/loss/class_labels.h"

namespace annulus::cuda {
namespace {

struct Totals {
  double loss;
  std::uint32_t first, among_top;
};
__device__ Totals combined(const Totals& a, const Totals& b) {
  return {a.loss + b.loss, a.first + b.first, a.among_top + b.among_top};
}

// Runs a block with a single column of threads, so the order of the sums depends only on the batch.
__global__ void add_up(Predecessor previous, const SampleLoss* samples, std::size_t batch, float* sums) {
  await(previous);
  Totals totals[1]{};
  for (std::size_t i = threadIdx.y; i < batch; i += blockDim.y)
    totals[0] =
        combined(totals[0], {samples[i].loss, samples[i].larger < 1, samples[i].larger < SoftmaxCrossEntropy::kTop});
  add_up_block(totals);
  if (threadIdx.y > 0) return;
  sums[0] = static_cast<float>(totals[0].loss);
  sums[1] = static_cast<float>(totals[0].first);
  sums[2] = static_cast<float>(totals[0].among_top);
}

}  // namespace

void add_up_samples(const SampleLoss* samples, std::size_t batch, float* sums, cudaStream_t lane) {
  constexpr unsigned kThreads = 256;
  launch(add_up, 1, dim3(1, kThreads), lane, samples, batch, sums);
}

}  // namespace annulus::cuda
