#include "src/restore.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/error.h"

namespace annulus {
namespace {

// What a checkpoint keeps: metrics are of the moment.
bool kept(const Parameter& parameter) {
  return parameter.role != Role::metric;
}

std::vector<float> read(Device& device, const Parameter& parameter, DeviceView from) {
  std::vector<float> values(elements(parameter.spec.shape));
  device.read(parameter.spec, from, values);
  return values;
}

const NamedTensor& find(const Checkpoint& checkpoint, const std::filesystem::path& file, const Parameter& parameter) {
  const auto found = std::ranges::find(checkpoint.parameters, parameter.name, &NamedTensor::name);
  if (found == checkpoint.parameters.end())
    fail("{} has no parameter {}: it is of another model ({})", file.string(), parameter.name, checkpoint.model);
  if (found->shape != parameter.spec.shape)
    fail("{}: {} is {}, but the model's is {}: it was trained on other images or classes", file.string(),
         parameter.name, to_string(found->shape), to_string(parameter.spec.shape));
  return *found;
}

void restore_states(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                    const Optimizer& optimizer) {
  if (!checkpoint.optimizer.empty() && checkpoint.optimizer != optimizer.name())
    fail("{} was made with --optimizer {}: resume it with that, for its state means nothing to another", file.string(),
         checkpoint.optimizer);
  for (const Parameter& parameter : model.parameters().all()) {
    if (!parameter.trained()) continue;
    const NamedTensor& saved = find(checkpoint, file, parameter);
    if (saved.states.size() != optimizer.states())
      fail("{} has {} of the optimizer's {} states of {}: resume it with the same --optimizer", file.string(),
           saved.states.size(), optimizer.states(), parameter.name);
    for (std::size_t i = 0; i < optimizer.states(); ++i)
      model.device().write(saved.states[i], parameter.spec, optimizer.state(i, parameter));
  }
}

void restore_average(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                     const Optimizer& optimizer) {
  const bool wanted = static_cast<bool>(optimizer.average());
  if (wanted != checkpoint.averages())
    fail("{} was made {} --ema: resume it {} it as well", file.string(), wanted ? "without" : "with",
         wanted ? "without" : "with");
  if (!wanted) return;
  for (const Parameter& p : model.parameters().all())
    if (kept(p)) model.device().write(find(checkpoint, file, p).average, p.spec, optimizer.average(p));
}

void expect_kind(const Checkpoint& checkpoint, const std::filesystem::path& file, const RunKind& kind) {
  if (checkpoint.model != kind.model)
    fail("{} is of model {}: resume it with --model {}", file.string(), checkpoint.model, checkpoint.model);
  if (checkpoint.seed != kind.seed)
    fail("{} was made with --seed {}: resume it with that, or the order of the samples would change", file.string(),
         checkpoint.seed);
  const bool within_epoch = checkpoint.cursor.position > 0;
  if (within_epoch && !checkpoint.order.empty() && checkpoint.order != kind.order)
    fail(
        "{} was made within an epoch of {}, but this run has {}: samples would come twice or never; resume it as it "
        "was",
        file.string(), checkpoint.order, kind.order);
}

// Rank 0's memory to every rank's.
void broadcast(const World& world, Device& device, DeviceView view) {
  std::vector<std::byte> bytes(view.bytes);
  if (world.root()) device.download(view, bytes);
  world.broadcast(bytes);
  device.upload(bytes, view);
}

}  // namespace

Checkpoint snapshot(Model& model, const Optimizer& optimizer) {
  Checkpoint checkpoint;
  checkpoint.optimizer = optimizer.name();
  const Parameters& parameters = model.parameters();
  if (LossScaling* scaling = model.device().loss_scaling()) checkpoint.loss_scaling = scaling->state();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    NamedTensor tensor{p.name, p.spec.shape, read(model.device(), p, parameters.weight(p)), {}};
    for (std::size_t i = 0; p.trained() && i < optimizer.states(); ++i)
      tensor.states.push_back(read(model.device(), p, optimizer.state(i, p)));
    if (optimizer.average()) tensor.average = read(model.device(), p, optimizer.average(p));
    checkpoint.parameters.push_back(std::move(tensor));
  }
  return checkpoint;
}

void restore_parameters(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model, bool averaged) {
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    const NamedTensor& saved = find(checkpoint, file, p);
    model.device().write(averaged ? saved.average : saved.values, p.spec, parameters.weight(p));
  }
  model.parameters().weights_changed();
}

std::optional<Restored> restore(const World& world, const std::filesystem::path& file, const RunKind& kind,
                                Model& model, Optimizer& optimizer) {
  enum { kFound, kStep, kEpoch, kPosition, kBucketBytes, kDeferred, kTunedForRanks, kLossScale, kGoodSteps, kFields };
  std::array<std::uint64_t, kFields> state{};
  std::string summing;
  if (world.root() && std::filesystem::exists(file)) {
    const Checkpoint checkpoint = read_checkpoint(file);
    expect_kind(checkpoint, file, kind);
    restore_parameters(checkpoint, file, model);
    restore_states(checkpoint, file, model, optimizer);
    restore_average(checkpoint, file, model, optimizer);
    const LossScaling::State scaling = checkpoint.loss_scaling.value_or(LossScaling::State{});
    state = {1,
             checkpoint.step,
             checkpoint.cursor.epoch,
             checkpoint.cursor.position,
             checkpoint.buckets.bytes,
             std::bit_cast<std::uint64_t>(checkpoint.buckets.deferred),
             checkpoint.tuned_for_ranks,
             std::bit_cast<std::uint32_t>(scaling.scale),
             scaling.good_steps};
    summing = checkpoint.summing;
  }
  world.broadcast(std::as_writable_bytes(std::span(state)));
  if (state[kFound] == 0) return std::nullopt;
  broadcast(world, model.device(), model.parameters().weights());
  model.parameters().weights_changed();
  for (std::size_t i = 0; i < optimizer.states(); ++i) broadcast(world, model.device(), optimizer.state(i));
  if (optimizer.average()) broadcast(world, model.device(), optimizer.average());
  optimizer.set_step(state[kStep]);
  if (LossScaling* scaling = model.device().loss_scaling())
    scaling->set_state({std::bit_cast<float>(static_cast<std::uint32_t>(state[kLossScale])),
                        static_cast<std::uint32_t>(state[kGoodSteps])});
  return Restored{{state[kEpoch], state[kPosition]},
                  state[kStep],
                  {state[kBucketBytes], std::bit_cast<double>(state[kDeferred])},
                  state[kTunedForRanks],
                  summing};
}

}  // namespace annulus
