#include "src/step/state_copy.h"

namespace annulus {
namespace {

std::span<std::byte> bytes(const Buffer& buffer) {
  return {buffer.view().address, buffer.view().bytes};
}

}  // namespace

StateCopy::StateCopy(Model& model, Optimizer& optimizer) : model_(model), optimizer_(optimizer) {
  std::vector<DeviceView> originals{model.parameters().weights(), optimizer.average()};
  for (std::size_t state = 0; state < optimizer.states(); ++state) originals.push_back(optimizer.state(state));
  for (const DeviceView& original : originals)
    if (original) parts_.push_back({original, allocate_host(original.bytes)});
}

void StateCopy::take() {
  for (const Part& part : parts_) model_.device().download(part.original, bytes(part.copy));
  step_ = optimizer_.step();
}

void StateCopy::restore() {
  for (const Part& part : parts_) model_.device().upload(bytes(part.copy), part.original);
  model_.parameters().weights_changed();
  optimizer_.set_step(step_);
}

}  // namespace annulus
