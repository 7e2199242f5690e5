#include "src/step/state_copy.h"

#include "src/io/hash.h"

namespace annulus {
namespace {

std::span<std::byte> bytes(const Buffer& buffer) {
  return {buffer.view().address, buffer.view().bytes};
}

}  // namespace

StateCopy::StateCopy(Model& model, Optimizer& optimizer, KeptState& kept_state)
    : model_(model), optimizer_(optimizer), kept_state_(kept_state) {
  for (const DeviceView original : {model.parameters().weights(), kept_state.outer_velocity()})
    if (original) parts_.push_back({original, allocate_host(original.bytes)});
  for (std::size_t arena = 0; arena < optimizer.states() + (optimizer.average() ? 1 : 0); ++arena)
    kept_.push_back(allocate_host(model.parameters().gradients().bytes));
}

// Calls visit(what the optimizer keeps, the copy).
template <class Visit>
void StateCopy::for_each_kept(Visit visit) {
  for (std::size_t arena = 0; arena < kept_.size(); ++arena)
    visit(arena < optimizer_.states() ? optimizer_.state(arena) : optimizer_.average(), bytes(kept_[arena]));
}

void StateCopy::take() {
  for (const Part& part : parts_) model_.device().download(part.original, bytes(part.copy));
  for_each_kept([&](DeviceView kept, std::span<std::byte> copy) {
    model_.device().download(optimizer_.sharded() ? kept_state_.gather(kept) : kept, copy);
  });
  step_ = optimizer_.step();
}

std::uint64_t StateCopy::checksum() const {
  std::uint64_t sum = 0;
  const auto add = [&sum](const Buffer& copy) { sum = hash_bytes(bytes(copy), sum); };
  for (const Part& part : parts_) add(part.copy);
  for (const Buffer& copy : kept_) add(copy);
  return sum;
}

void StateCopy::restore() {
  for (const Part& part : parts_) model_.device().upload(bytes(part.copy), part.original);
  for_each_kept([&](DeviceView kept, std::span<std::byte> copy) {
    optimizer_.write(kept, 0, copy);
    kept_state_.adopt(kept_state_.gather(kept), kept);
  });
  model_.parameters().weights_changed();
  optimizer_.set_step(step_);
  optimizer_.forget_divergence();
}

}  // namespace annulus
