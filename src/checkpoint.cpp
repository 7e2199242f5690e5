#include "src/checkpoint.h"

#include <array>
#include <cmath>
#include <span>

#include "kernels/error.h"
#include "src/atomic_file.h"
#include "src/data/hdf5.h"

namespace annulus {
namespace {

constexpr const char* kFormat = "annulus checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr std::array kStateNames = {"velocity", "second_moment"};  // groups
constexpr const char* kAverage = "average";

void require_known_format(const hdf5::Group& root) {
  if (!root.has_attribute("format") || root.string("format") != kFormat) {
    fail("{}: an HDF5 file, but not a checkpoint of this program", root.place());
  }
  const std::uint64_t version = root.integer("version");
  if (version > kVersion) {
    fail("{}: a checkpoint of version {}, but this program reads up to {}; use a newer one", root.place(), version,
         kVersion);
  }
}

std::vector<float> read_floats(const hdf5::Dataset& dataset) {
  if (!dataset.holds<float>()) fail("{}: must hold float32", dataset.place());
  return dataset.read<float>();
}

// Files of the first days do not say.
void read_summing(const hdf5::Group& root, Checkpoint& checkpoint) {
  if (!root.has_attribute("summing")) return;
  checkpoint.summing = root.string("summing");
  checkpoint.buckets = {root.integer("bucket_bytes"), static_cast<double>(root.integer("deferred_percent")) / 100};
  checkpoint.tuned_for_ranks = root.integer("tuned_for_ranks");
}

std::vector<float> read_like(const NamedTensor& tensor, const hdf5::Group& group) {
  const hdf5::Dataset values = group.dataset(tensor.name);
  if (values.shape() != tensor.shape)
    fail("{}: shape {}, but the parameter's is {}", values.place(), to_string(values.shape()), to_string(tensor.shape));
  return read_floats(values);
}

NamedTensor read_parameter(const hdf5::Group& parameters, const std::vector<hdf5::Group>& states,
                           const std::string& name) {
  const hdf5::Dataset values = parameters.dataset(name);
  NamedTensor tensor{name, values.shape(), read_floats(values), {}};
  for (const hdf5::Group& group : states)
    if (group.has(name)) tensor.states.push_back(read_like(tensor, group));
  return tensor;
}

void write_loss_scaling(hdf5::Group& root, const LossScaling::State& state) {
  root.set_integer("loss_scale", static_cast<std::uint64_t>(state.scale));
  root.set_integer("good_steps", state.good_steps);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint) {
  hdf5::NewFile hdf5(file);
  hdf5::Group root = hdf5.root();
  root.set_string("format", kFormat);
  root.set_integer("version", kVersion);
  root.set_string("model", checkpoint.model);
  root.set_string("optimizer", checkpoint.optimizer);
  root.set_string("configuration", checkpoint.configuration);
  root.set_integer("seed", checkpoint.seed);
  root.set_integer("step", checkpoint.step);
  root.set_integer("epoch", checkpoint.cursor.epoch);
  root.set_integer("position", checkpoint.cursor.position);
  root.set_string("order", checkpoint.order);
  root.set_integer("image_height", checkpoint.image.height);
  root.set_integer("image_width", checkpoint.image.width);
  root.set_string("summing", checkpoint.summing);
  root.set_integer("bucket_bytes", checkpoint.buckets.bytes);
  root.set_integer("tuned_for_ranks", checkpoint.tuned_for_ranks);
  root.set_integer("deferred_percent", static_cast<std::uint64_t>(std::lround(100 * checkpoint.buckets.deferred)));
  if (checkpoint.loss_scaling) write_loss_scaling(root, *checkpoint.loss_scaling);
  hdf5::Group parameters = root.create_group("parameters");
  std::vector<hdf5::Group> states;
  states.push_back(root.create_group(kStateNames[0]));
  for (const NamedTensor& tensor : checkpoint.parameters) {
    parameters.write(tensor.name, tensor.shape, std::span(tensor.values));
    while (states.size() < tensor.states.size()) states.push_back(root.create_group(kStateNames[states.size()]));
    for (std::size_t i = 0; i < tensor.states.size(); ++i)
      states[i].write(tensor.name, tensor.shape, std::span(tensor.states[i]));
  }
  if (checkpoint.averages()) {
    hdf5::Group averages = root.create_group(kAverage);
    for (const NamedTensor& tensor : checkpoint.parameters)
      averages.write(tensor.name, tensor.shape, std::span(tensor.average));
  }
  write_atomically(file, hdf5.image());
}

Checkpoint read_checkpoint(const std::filesystem::path& file) {
  const hdf5::Group root = hdf5::File(file).root();
  require_known_format(root);
  Checkpoint checkpoint;
  checkpoint.model = root.string("model");
  if (root.has_attribute("optimizer")) checkpoint.optimizer = root.string("optimizer");
  checkpoint.configuration = root.string("configuration");
  checkpoint.seed = root.integer("seed");
  checkpoint.step = root.integer("step");
  checkpoint.cursor = {root.integer("epoch"), root.integer("position")};
  if (root.has_attribute("order")) checkpoint.order = root.string("order");
  if (root.has_attribute("image_height"))
    checkpoint.image = {root.integer("image_height"), root.integer("image_width")};
  read_summing(root, checkpoint);
  if (root.has_attribute("loss_scale"))
    checkpoint.loss_scaling = {static_cast<float>(root.integer("loss_scale")),
                               static_cast<std::uint32_t>(root.integer("good_steps"))};
  const hdf5::Group parameters = root.group("parameters");
  std::vector<hdf5::Group> states;
  states.push_back(root.group(kStateNames[0]));
  if (root.has(kStateNames[1])) states.push_back(root.group(kStateNames[1]));
  for (const std::string& name : parameters.names())
    checkpoint.parameters.push_back(read_parameter(parameters, states, name));
  if (root.has(kAverage))
    for (NamedTensor& tensor : checkpoint.parameters) tensor.average = read_like(tensor, root.group(kAverage));
  return checkpoint;
}

}  // namespace annulus
