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

// Throws Error naming the file unless both or neither have an average.
void expect_average(const CheckpointFile& file, const Optimizer& optimizer) {
  const bool wanted = static_cast<bool>(optimizer.average());
  if (wanted != file.averages())
    fail("{} was made {} --ema or --lookahead: resume it {} as well", file.path().string(), wanted ? "without" : "with",
         wanted ? "without" : "with");
}

void expect_kind(const CheckpointHeader& checkpoint, const std::filesystem::path& file, const RunKind& kind) {
  if (checkpoint.model != kind.model)
    fail("{} is of model {}: resume it with --model {}", file.string(), checkpoint.model, checkpoint.model);
  if (checkpoint.onnx != kind.onnx)
    fail("{} was made with another file {}, or with another --pixels: resume it with the same, or remove this file",
         file.string(), kind.model);
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
std::optional<std::string> data_difference(const CheckpointHeader& checkpoint, const std::filesystem::path& file,
                                           const RunKind& kind) {
  const auto difference = first_difference(data_fields(checkpoint.data, checkpoint.samples), kind.data);
  if (difference && !kind.data_changed)
    fail("{} was trained on other data, which differs in {}: resume it with the same --data, or add --data-changed",
         file.string(), *difference);
  return difference;
}

void expect_usable(const StoredCheckpoint& stored, const CheckpointFolder& folder) try {
  expect_usable(stored.file);
} catch (const Error& error) {
  const auto earlier = folder.newest_usable();
  if (!earlier) throw;
  fail("{}; to resume from {}, delete the later ones", error.what(), earlier->string());
}

// Throws Error naming the file unless it has this optimizer's states.
void expect_states(const CheckpointFile& file, const Model& model, const Optimizer& optimizer) {
  const CheckpointHeader& header = file.header();
  if (header.optimizer != optimizer.name())
    fail("{} was made with --optimizer {}: resume it with the same --optimizer, because others cannot use its state",
         file.path().string(), header.optimizer);
  for (const Parameter& p : model.parameters().all())
    if ((p.role == Role::frozen) != (std::ranges::find(header.frozen, p.name) != header.frozen.end()))
      fail("{} was made with another --freeze: {} parameters were frozen: resume it with the same --freeze",
           file.path().string(), header.frozen.size());
  for (const Parameter& p : model.parameters().all()) {
    if (!p.trained()) continue;
    expect_parameter(file, p.name, p.spec.shape);
    const auto saved = static_cast<std::size_t>(
        std::ranges::count_if(kStateNames, [&](std::string_view state) { return file.has(state, p.name); }));
    if (saved != optimizer.states())
      fail("{} has {} of the optimizer's {} states of {}: resume it with the same --optimizer", file.path().string(),
           saved, optimizer.states(), p.name);
  }
}

// Reads a group's arrays into the gradients' arena; zeros if there are none.
void read_arena(const CheckpointFile& file, std::string_view group, Model& model) {
  const Parameters& parameters = model.parameters();
  model.device().zero(parameters.gradients());
  for (const Parameter& p : parameters.all())
    if (p.role != Role::frozen && file.has(group, p.name))
      model.device().write(file.read(group, p.name), p.spec, parameters.gradient(p));
}

// Calls visit(its offset, a copy of it) for each piece of a device's memory, so that the copies need little memory.
template <class Visit>
void for_each_piece(Device& device, DeviceView view, const Visit& visit) {
  constexpr std::size_t kPiece = 4 << 20;
  std::vector<std::byte> bytes;
  for (std::size_t begin = 0; begin < view.bytes; begin += kPiece) {
    bytes.resize(std::min(kPiece, view.bytes - begin));
    device.download(view.slice(begin, bytes.size()), bytes);
    visit(begin, std::span(bytes));
  }
}

// Copies rank 0's memory `from` to every rank's memory `to`.
void broadcast(const World& world, Device& device, DeviceView from, DeviceView to) {
  for_each_piece(device, from, [&](std::size_t begin, std::span<std::byte> bytes) {
    world.broadcast(bytes);
    device.upload(bytes, to.slice(begin, bytes.size()));
  });
}

}  // namespace

void expect_parameter(const CheckpointFile& file, const std::string& name, const Shape& shape) {
  if (!file.has(kParameters, name))
    fail("{} has no parameter {}: it belongs to another model ({})", file.path().string(), name, file.header().model);
  if (file.shape(name) != shape)
    fail("{}: {} is {}, but the model's is {}: it was trained on other images or classes", file.path().string(), name,
         to_string(file.shape(name)), to_string(shape));
}

std::vector<NamedTensor> snapshot(Model& model) {
  std::vector<NamedTensor> tensors;
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    tensors.push_back({p.name, p.spec.shape, read(model.device(), p, parameters.weight(p)), {}});
  }
  return tensors;
}

namespace {

// Calls visit(tensor, its values in an arena with the gradients' layout) for each parameter that is trained.
template <class Visit>
void for_each_trained(Checkpoint& checkpoint, Model& model, DeviceView arena, Visit visit) {
  auto tensor = checkpoint.parameters.begin();
  for (const Parameter& p : model.parameters().all()) {
    if (!kept(p)) continue;
    if (p.trained()) visit(*tensor, read(model.device(), p, arena.slice(p.offset, p.bytes)));
    ++tensor;
  }
}

// Frozen parameters do not move, so they are their own average.
DeviceView average_of(const Model& model, const Parameter& p, DeviceView average) {
  return p.role == Role::frozen ? model.parameters().weight(p) : average.slice(p.offset, p.bytes);
}

}  // namespace

void add_state(Checkpoint& checkpoint, Model& model, DeviceView state) {
  for_each_trained(checkpoint, model, state,
                   [](NamedTensor& tensor, std::vector<float> values) { tensor.states.push_back(std::move(values)); });
}

void set_average(Checkpoint& checkpoint, Model& model, DeviceView average) {
  auto tensor = checkpoint.parameters.begin();
  for (const Parameter& p : model.parameters().all())
    if (kept(p)) (tensor++)->average = read(model.device(), p, average_of(model, p, average));
}

void set_outer_velocity(Checkpoint& checkpoint, Model& model, DeviceView velocity) {
  for_each_trained(checkpoint, model, velocity,
                   [](NamedTensor& tensor, std::vector<float> values) { tensor.outer_velocity = std::move(values); });
}

ArraySource arrays_of(Model& model, const Optimizer& optimizer) {
  ArraySource source;
  for (const Parameter& p : model.parameters().all()) {
    if (!kept(p)) continue;
    const std::size_t arrays = 1 + (p.trained() ? optimizer.states() : 0) + (optimizer.average() ? 1 : 0);
    source.arrays += arrays;
    source.values += arrays * elements(p.spec.shape);
  }
  source.for_each = [&model, &optimizer](const auto& visit) {
    for (const Parameter& p : model.parameters().all()) {
      if (!kept(p)) continue;
      const auto visit_array = [&](std::string_view group, DeviceView from) {
        visit({group, p.name, p.spec.shape, read(model.device(), p, from)});
      };
      visit_array(kParameters, model.parameters().weight(p));
      for (std::size_t i = 0; p.trained() && i < optimizer.states(); ++i)
        visit_array(kStateNames[i], optimizer.state(i, p));
      if (optimizer.average()) visit_array(kAverage, average_of(model, p, optimizer.average()));
    }
  };
  return source;
}

void restore_parameters(const CheckpointFile& file, Model& model, bool averaged) {
  const Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (!kept(p)) continue;
    expect_parameter(file, p.name, p.spec.shape);
    model.device().write(file.read(averaged ? kAverage : kParameters, p.name), p.spec, parameters.weight(p));
  }
  model.parameters().weights_changed();
}

void broadcast_weights(const World& world, Model& model) {
  const DeviceView weights = model.parameters().weights();
  broadcast(world, model.device(), weights, weights);
  model.parameters().weights_changed();
}

void restore_states(const CheckpointFile& file, Model& model, Optimizer& optimizer) {
  expect_states(file, model, optimizer);
  for (std::size_t i = 0; i < optimizer.states(); ++i) {
    read_arena(file, kStateNames[i], model);
    for_each_piece(model.device(), model.parameters().gradients(), [&](std::size_t begin, std::span<std::byte> bytes) {
      optimizer.write(optimizer.state(i), begin, bytes);
    });
  }
}

std::optional<Resumption> find_resumption(const World& world, const CheckpointFolder& folder, const RunKind& kind) {
  Resumption resumption;
  struct {
    bool found;
    std::size_t cuts;
    RunState state;
  } shared{};
  if (world.root()) resumption.stored = folder.newest();
  if (resumption.stored) {
    const CheckpointFile& file = resumption.stored->file;
    expect_usable(*resumption.stored, folder);
    resumption.data_difference = data_difference(file.header(), file.path(), kind);
    expect_kind(file.header(), file.path(), kind);
    resumption.cuts = file.header().cuts;
    shared = {true, resumption.cuts.size(), file.header().run};
    shared.state.best = folder.best();
  }
  world.broadcast(std::as_writable_bytes(std::span(&shared, 1)));
  if (!shared.found) return std::nullopt;
  resumption.state = shared.state;
  resumption.cuts.resize(shared.cuts);
  for (std::string& cut : resumption.cuts) world.broadcast(cut);
  return resumption;
}

void restore(const World& world, const Resumption& resumption, Model& model, Optimizer& optimizer,
             DeviceView outer_velocity) {
  const CheckpointFile* const file = resumption.stored ? &resumption.stored->file : nullptr;
  if (file != nullptr) {
    restore_parameters(*file, model);
    expect_states(*file, model, optimizer);
    expect_average(*file, optimizer);
  }
  broadcast_weights(world, model);
  const DeviceView arena = model.parameters().gradients();
  const auto restore_kept = [&](std::string_view group, DeviceView kept) {
    if (file != nullptr) read_arena(*file, group, model);
    for_each_piece(model.device(), arena, [&](std::size_t begin, std::span<std::byte> bytes) {
      world.broadcast(bytes);
      optimizer.write(kept, begin, bytes);
    });
  };
  for (std::size_t i = 0; i < optimizer.states(); ++i) restore_kept(kStateNames[i], optimizer.state(i));
  if (optimizer.average()) restore_kept(kAverage, optimizer.average());
  if (outer_velocity) {
    if (file != nullptr) read_arena(*file, kOuterVelocity, model);
    broadcast(world, model.device(), arena, outer_velocity);
  }
  optimizer.set_step(resumption.state.step);
  if (LossScaling* scaling = model.device().loss_scaling())
    scaling->set_state(resumption.state.loss_scaling.value_or(LossScaling::State{}));
}

std::uint64_t restore_best(const World& world, const CheckpointFolder& folder, Model& model) {
  std::uint64_t step = 0;
  if (world.root()) {
    const CheckpointFile best(folder.best_file());
    restore_parameters(best, model, best.averages());
    step = best.header().run.step;
  }
  world.broadcast(std::as_writable_bytes(std::span(&step, 1)));
  broadcast_weights(world, model);
  return step;
}

}  // namespace annulus
