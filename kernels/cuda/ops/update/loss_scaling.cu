#include "kernels/cuda/ops/update/loss_scaling.h"

#include "kernels/cuda/ops/loops/vectors.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint32_t kGoodSteps = 2000;  // before the scale is doubled
constexpr float kLargest = 0x1p24f, kSmallest = 1;

// The state in device memory.
struct Scaling {
  float scale, unscale;
  std::uint32_t skip, good_steps;
};

__global__ void flag_unfit(Predecessor previous, const float* gradients, std::size_t count, Scaling* scaling) {
  await(previous);
  bool unfit = false;
  const auto look = [&](float value) { unfit = unfit || !(fabsf(value) < INFINITY); };
  for (std::size_t i = grid_thread(); i < count / 4; i += grid_threads())
    for (const float value : load_floats<4>(gradients + 4 * i).at) look(value);
  if (grid_thread() < count % 4) look(gradients[count / 4 * 4 + grid_thread()]);
  if (unfit) atomicExch(&scaling->skip, 1u);
}

__global__ void report_unfit(Predecessor previous, const Scaling* scaling, float* ranks) {
  await(previous);
  *ranks = scaling->skip != 0 ? 1 : 0;
}

__global__ void adopt_unfit(Predecessor previous, const float* ranks, Scaling* scaling) {
  await(previous);
  if (*ranks > 0) scaling->skip = 1;
}

__global__ void adapt(Predecessor previous, Scaling* scaling) {
  await(previous);
  Scaling s = *scaling;
  if (s.skip != 0) {
    s.scale = fmaxf(s.scale / 2, kSmallest);
    s.good_steps = 0;
  } else if (++s.good_steps == kGoodSteps) {
    s.scale = fminf(s.scale * 2, kLargest);
    s.good_steps = 0;
  }
  *scaling = {s.scale, 1 / s.scale, 0, s.good_steps};
}

}  // namespace

DeviceLossScaling::DeviceLossScaling(Context& context)
    : context_(context), memory_(allocate_device(sizeof(Scaling))), ranks_(allocate_device(sizeof(float))) {
  set_state({});
}

const float* DeviceLossScaling::scale() const {
  return &data<Scaling>(memory_.view())->scale;
}
const float* DeviceLossScaling::unscale() const {
  return &data<Scaling>(memory_.view())->unscale;
}
const std::uint32_t* DeviceLossScaling::skip() const {
  return &data<Scaling>(memory_.view())->skip;
}

void DeviceLossScaling::judge(DeviceView gradients) {
  const std::size_t count = gradients.bytes / sizeof(float);
  launch(flag_unfit, blocks_for(count / 4, kThreads, context_.multiprocessors), kThreads, context_.lane.get(),
         data<float>(gradients), count, data<Scaling>(memory_.view()));
}

void DeviceLossScaling::agree(const SumOverRanks& sum) {
  auto* const scaling = data<Scaling>(memory_.view());
  auto* const ranks = data<float>(ranks_.view());
  launch(report_unfit, 1, 1, context_.lane.get(), scaling, ranks);
  sum(ranks_.view());
  launch(adopt_unfit, 1, 1, context_.lane.get(), ranks, scaling);
}

void DeviceLossScaling::conclude() {
  launch(adapt, 1, 1, context_.lane.get(), data<Scaling>(memory_.view()));
}

LossScaling::State DeviceLossScaling::state() {
  Scaling scaling{};
  check(cudaMemcpyAsync(&scaling, memory_.view().address, sizeof scaling, cudaMemcpyDeviceToHost, context_.lane.get()));
  check(cudaStreamSynchronize(context_.lane.get()));
  return {scaling.scale, scaling.good_steps};
}

void DeviceLossScaling::set_state(const State& state) {
  const Scaling scaling{state.scale, 1 / state.scale, 0, state.good_steps};
  check(cudaMemcpyAsync(memory_.view().address, &scaling, sizeof scaling, cudaMemcpyHostToDevice, context_.lane.get()));
  check(cudaStreamSynchronize(context_.lane.get()));  // the copy reads this function's local variable
}

}  // namespace annulus::cuda
