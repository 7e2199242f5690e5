#include "src/checkpoint/restore.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Whether checkpoints store the parameter: metrics are not stored.
bool kept(const Parameter& parameter) {
  return parameter.role != Role::metric;
}

std::vector<float> read(Device& device, const Parameter& parameter, DeviceView from) {
  std::vector<float> values(elements(parameter.spec.shape));
  device.read(parameter.spec, from, values);
  return values;
}

std::vector<std::string> frozen_names(const Model& model) {
  std::vector<std::string> names;
  for (const Parameter& p : model.parameters().all())
    if (p.role == Role::frozen) names.push_back(p.name);
  return names;
}

void restore_average(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                     const Optimizer& optimizer) {
  const bool wanted = static_cast<bool>(optimizer.average());
  if (wanted != checkpoint.averages())
    fail("{} was made {} --ema: resume it {} --ema as well", file.string(), wanted ? "without" : "with",
         wanted ? "without" : "with");
  if (!wanted) return;
  for (const Parameter& p : model.parameters().all())
    if (kept(p))
      model.device().write(find(checkpoint, file, p.name, p.spec.shape).average, p.spec, optimizer.average(p));
}

void expect_kind(const Checkpoint& checkpoint, const std::filesystem::path& file, const RunKind& kind) {
  if (checkpoint.model != kind.model)
    fail("{} is of model {}: resume it with --model {}", file.string(), checkpoint.model, checkpoint.model);
  if (checkpoint.onnx != kind.onnx)
    fail("{} was made with another file {}: resume it with that file, or remove this one", file.string(), kind.model);
  if (checkpoint.data.labels != kind.labels)
    fail("{} was trained on labels that are {}, and these are {}: resume it with data of that kind", file.string(),
         description(checkpoint.data.labels), description(kind.labels));
  if (checkpoint.loss != kind.loss)
    fail("{} was made with --loss {}: resume it with the same --loss", file.string(), checkpoint.loss);
  if (checkpoint.seed != kind.seed)
    fail("{} was made with --seed {}: resume it with the same --seed, or the order of the samples would change",
         file.string(), checkpoint.seed);
  const RunState& run = checkpoint.run;
  if (run.shards != kind.shards)
    fail("{} was made {}: resume it {}, because batches are computed in other parts otherwise", file.string(),
         run.shards > 0 ? fmt::format("with --shards {}", run.shards) : "without --shards",
         run.shards > 0 ? "with the same number" : "without it");
  if (run.shards > 0 && run.threads != kind.threads)
    fail("{} was made with --shards and --threads {}, on which results depend: resume it with --threads {}",
         file.string(), run.threads, run.threads);
  const bool within_epoch = checkpoint.run.cursor.position > 0;
  if (within_epoch && checkpoint.order != kind.order)
    fail(
        "{} was made within an epoch of {}, but this run has {}: samples would be repeated or missed; resume it with "
        "the same options",
        file.string(), checkpoint.order, kind.order);
}

// Returns the first difference between this run's data and the checkpoint's. Throws Error unless --data-changed accepts
// it.
std::optional<std::string> data_difference(const Checkpoint& checkpoint, const std::filesystem::path& file,
                                           const RunKind& kind) {
  const auto difference = first_difference(data_fields(checkpoint.data, checkpoint.samples), kind.data);
  if (difference && !kind.data_changed)
    fail("{} was trained on other data, which differs in {}: resume it with the same --data, or add --data-changed",
         file.string(), *difference);
  return difference;
}

void expect_usable(const StoredCheckpoint& stored, const CheckpointFolder& folder) try {
  expect_usable(stored.checkpoint, stored.file);
} catch (const Error& error) {
  const auto earlier = folder.newest_usable();
  if (!earlier) throw;
  fail("{}; to resume from {}, delete the later ones", error.what(), earlier->string());
}

// Throws Error naming `file` unless the checkpoint has this optimizer's states.
void expect_states(const Checkpoint& checkpoint, const std::filesystem::path& file, const Model& model,
                   const Optimizer& optimizer) {
  if (checkpoint.optimizer != optimizer.name())
    fail("{} was made with --optimizer {}: resume it with the same --optimizer, because others cannot use its state",
         file.string(), checkpoint.optimizer);
  if (checkpoint.frozen != frozen_names(model))
    fail("{} was made with another --freeze: {} parameters were frozen: resume it with the same --freeze",
         file.string(), checkpoint.frozen.size());
  for (const Parameter& p : model.parameters().all()) {
    if (!p.trained()) continue;
    const NamedTensor& saved = find(checkpoint, file, p.name, p.spec.shape);
    if (saved.states.size() != optimizer.states())
      fail("{} has {} of the optimizer's {} states of {}: resume it with the same --optimizer", file.string(),
           saved.states.size(), optimizer.states(), p.name);
  }
}

// Returns a state as an arena with the gradients' layout. Overwrites the gradients.
std::vector<std::byte> state_of(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                                std::size_t number) {
  const Parameters& parameters = model.parameters();
  Device& device = model.device();
  device.zero(parameters.gradients());
  for (const Parameter& p : parameters.all())
    if (p.trained())
      device.write(find(checkpoint, file, p.name, p.spec.shape).states[number], p.spec, parameters.gradient(p));
  std::vector<std::byte> bytes(parameters.gradients().bytes);
  device.download(parameters.gradients(), bytes);
  return bytes;
}

// Copies rank 0's memory to every rank's.
void broadcast(const World& world, Device& device, DeviceView view) {
  std::vector<std::byte> bytes(view.bytes);
  if (world.root()) device.download(view, bytes);
  world.broadcast(bytes);
  device.upload(bytes, view);
}

}  // namespace

const NamedTensor& find(const Checkpoint& checkpoint, const std::filesystem::path& file, const std::string& name,
                        const Shape& shape) {
  const auto found = std::ranges::find(checkpoint.parameters, name, &NamedTensor::name);
  if (found == checkpoint.parameters.end())
    fail("{} has no parameter {}: it belongs to another model ({})", file.string(), name, checkpoint.model);
  if (found->shape != shape)
    fail("{}: {} is {}, but the model's is {}: it was trained on other images or classes", file.string(), name,
         to_string(found->shape), to_string(shape));
  return *found;
}

Checkpoint snapshot(Model& model, const Optimizer& optimizer) {
  Checkpoint checkpoint;
  checkpoint.optimizer = optimizer.name();
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    NamedTensor tensor{p.name, p.spec.shape, read(model.device(), p, parameters.weight(p)), {}};
    if (optimizer.average()) tensor.average = read(model.device(), p, optimizer.average(p));
    checkpoint.parameters.push_back(std::move(tensor));
  }
  checkpoint.frozen = frozen_names(model);
  return checkpoint;
}

void add_state(Checkpoint& checkpoint, Model& model, DeviceView state) {
  auto tensor = checkpoint.parameters.begin();
  for (const Parameter& p : model.parameters().all()) {
    if (!kept(p)) continue;
    if (p.trained()) tensor->states.push_back(read(model.device(), p, state.slice(p.offset, p.bytes)));
    ++tensor;
  }
}

void restore_parameters(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model, bool averaged) {
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    const NamedTensor& saved = find(checkpoint, file, p.name, p.spec.shape);
    model.device().write(averaged ? saved.average : saved.values, p.spec, parameters.weight(p));
  }
  model.parameters().weights_changed();
}

void broadcast_weights(const World& world, Model& model) {
  broadcast(world, model.device(), model.parameters().weights());
  model.parameters().weights_changed();
}

void restore_states(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                    Optimizer& optimizer) {
  expect_states(checkpoint, file, model, optimizer);
  for (std::size_t i = 0; i < optimizer.states(); ++i) optimizer.write_state(i, state_of(checkpoint, file, model, i));
}

std::optional<Resumption> find_resumption(const World& world, const CheckpointFolder& folder, const RunKind& kind) {
  Resumption resumption;
  struct {
    bool found;
    RunState state;
  } shared{};
  if (world.root()) resumption.stored = folder.newest();
  if (resumption.stored) {
    const Checkpoint& checkpoint = resumption.stored->checkpoint;
    expect_usable(*resumption.stored, folder);
    resumption.data_difference = data_difference(checkpoint, resumption.stored->file, kind);
    expect_kind(checkpoint, resumption.stored->file, kind);
    shared = {true, checkpoint.run};
    shared.state.best = folder.best();
  }
  world.broadcast(std::as_writable_bytes(std::span(&shared, 1)));
  if (!shared.found) return std::nullopt;
  resumption.state = shared.state;
  return resumption;
}

void restore(const World& world, Resumption& resumption, Model& model, Optimizer& optimizer) {
  if (resumption.stored) {
    const Checkpoint& checkpoint = resumption.stored->checkpoint;
    restore_parameters(checkpoint, resumption.stored->file, model);
    expect_states(checkpoint, resumption.stored->file, model, optimizer);
    restore_average(checkpoint, resumption.stored->file, model, optimizer);
  }
  broadcast_weights(world, model);
  for (std::size_t i = 0; i < optimizer.states(); ++i) {
    std::vector<std::byte> state(model.parameters().gradients().bytes);
    if (resumption.stored) state = state_of(resumption.stored->checkpoint, resumption.stored->file, model, i);
    world.broadcast(state);
    optimizer.write_state(i, state);
  }
  if (resumption.stored) resumption.stored->checkpoint.parameters = {};
  if (optimizer.average()) broadcast(world, model.device(), optimizer.average());
  optimizer.set_step(resumption.state.step);
  if (LossScaling* scaling = model.device().loss_scaling())
    scaling->set_state(resumption.state.loss_scaling.value_or(LossScaling::State{}));
}

std::uint64_t restore_best(const World& world, const CheckpointFolder& folder, Model& model) {
  std::uint64_t step = 0;
  if (world.root()) {
    const std::filesystem::path file = folder.best_file();
    const Checkpoint best = read_checkpoint(file);
    restore_parameters(best, file, model, best.averages());
    step = best.run.step;
  }
  world.broadcast(std::as_writable_bytes(std::span(&step, 1)));
  broadcast_weights(world, model);
  return step;
}

}  // namespace annulus
