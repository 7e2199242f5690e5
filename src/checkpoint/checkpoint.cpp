#include "src/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "src/io/atomic_file.h"
#include "src/io/file_io.h"
#include "src/io/hash.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

constexpr const char* kFormat = "annulus checkpoint";
constexpr std::uint64_t kVersion = 4;
constexpr const char* kAverage = "average";
constexpr const char* kOnnx = "onnx";

// The end of a file, behind the HDF5 part that the checksum covers.
struct Seal {
  std::array<char, 8> mark = {'s', 'e', 'a', 'l', 'e', 'd', ' ', '2'};
  std::uint64_t checksum = 0;
};

std::vector<std::byte> sealed(std::vector<std::byte> image) {
  Hash hash;
  hash.add(std::span<const std::byte>(image));
  const Seal seal{.checksum = hash.value()};
  const auto bytes = std::as_bytes(std::span(&seal, 1));
  image.insert(image.end(), bytes.begin(), bytes.end());
  return image;
}

// Called before HDF5 opens the file, because HDF5 may crash on a damaged one. Returns whether there is a seal.
bool verify_seal(const std::filesystem::path& file) {
  const FileDescriptor descriptor = open_to_read(file);
  const std::uint64_t size = size_of(descriptor, file);
  Seal seal;
  if (size < sizeof seal) return false;
  const std::uint64_t end = size - sizeof seal;
  read_at(descriptor, file, end, {reinterpret_cast<std::uint8_t*>(&seal), sizeof seal});
  if (seal.mark != Seal{}.mark) return false;
  Hash hash;
  std::vector<std::uint8_t> piece(1 << 20);
  for (std::uint64_t position = 0; position < end; position += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), end - position));
    read_at(descriptor, file, position, piece);
    hash.add(std::span<const std::uint8_t>(piece));
  }
  if (hash.value() != seal.checksum)
    fail("{}: damaged, its checksum does not match; use another checkpoint", file.string());
  return true;
}

void require_known_format(const hdf5::Group& root, bool has_seal) {
  if (!root.has_attribute("format") || root.string("format") != kFormat) {
    fail("{}: an HDF5 file, but not a checkpoint of this program", root.place());
  }
  const std::uint64_t version = root.integer("version");
  if (version != kVersion)
    throw UnknownVersion(
        fmt::format("{}: a checkpoint of version {}, but this program reads version {}; use the program "
                    "that wrote it",
                    root.place(), version, kVersion));
  if (!has_seal) fail("{}: damaged or edited, its checksum is missing", root.place());
}

std::vector<float> read_floats(const hdf5::Dataset& dataset) {
  if (!dataset.holds<float>()) fail("{}: must hold float32", dataset.place());
  return dataset.read<float>();
}

void write_run_state(hdf5::Group& root, const RunState& state) {
  for (const RunStateField& field : kRunStateFields)
    if (const auto value = field.get(state)) root.set_integer(field.name, *value);
}

RunState read_run_state(const hdf5::Group& root) {
  if (root.has_attribute("loss_scale") != root.has_attribute("good_steps"))
    fail("{}: of the attributes 'loss_scale' and 'good_steps' one is missing", root.place());
  for (const char* value :
       {"correct", "top5", "loss_bits", "f1_bits", "mae_bits", "perplexity_bits", "bits_per_byte_bits"})
    if (root.has_attribute(value) && !root.has_attribute("count"))
      fail("{}: attribute '{}' without 'count'", root.place(), value);
  constexpr std::array kMain{"correct", "f1_bits", "mae_bits"};
  if (root.has_attribute("count") &&
      std::ranges::none_of(kMain, [&](const char* one) { return root.has_attribute(one); }))
    fail("{}: attribute 'count' without 'correct', 'f1_bits' or 'mae_bits'", root.place());
  RunState state;
  for (const RunStateField& field : kRunStateFields)
    if (field.required || root.has_attribute(field.name)) field.set(state, root.integer(field.name));
  return state;
}

void write_data(hdf5::Group& root, const DatasetInfo& data) {
  root.set_integer("labels", static_cast<std::uint64_t>(data.labels));
  root.set_strings("classes", data.classes);
  root.set_floats("mean", data.mean);
  root.set_floats("deviation", data.stddev);
  root.set_integer("data_height", data.height);
  root.set_integer("data_width", data.width);
  if (!data.is_text()) return;
  root.set_integer("vocabulary", data.vocabulary);
  root.set_integer("length", data.length);
  root.set_string("tokenizer_data", data.tokenizer);
}

void read_data(const hdf5::Group& root, DatasetInfo& data) {
  if (root.has_attribute("labels")) {
    const std::uint64_t kind = root.integer("labels");
    if (kind > static_cast<std::uint64_t>(LabelKind::tokens)) fail("{}: attribute 'labels': {}", root.place(), kind);
    data.labels = static_cast<LabelKind>(kind);
  }
  data.classes = root.strings("classes");
  data.mean = root.floats("mean");
  data.stddev = root.floats("deviation");
  data.channels = data.mean.size();
  data.height = root.integer("data_height");
  data.width = root.integer("data_width");
  if (!data.is_text()) return;
  data.vocabulary = root.integer("vocabulary");
  data.length = root.integer("length");
  data.tokenizer = root.string("tokenizer_data");
}

void write_samples(hdf5::Group& root, const std::vector<DataField>& samples) {
  std::vector<std::string> texts;
  for (const DataField& field : samples) texts.push_back(field.name + "=" + field.value);
  root.set_strings("samples", texts);
}

std::vector<DataField> read_samples(const hdf5::Group& root) {
  std::vector<DataField> samples;
  for (const std::string& text : root.strings("samples")) {
    const std::size_t end = std::min(text.find('='), text.size());
    samples.push_back({text.substr(0, end), text.substr(std::min(end + 1, text.size()))});
  }
  return samples;
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

hdf5::Group open_verified(const std::filesystem::path& file) {
  const bool has_seal = verify_seal(file);
  const hdf5::File hdf5(file);
  require_known_format(hdf5.root(), has_seal);
  return hdf5.root();
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint,
                      const std::function<void()>& written) {
  hdf5::NewFile hdf5(file);
  hdf5::Group root = hdf5.root();
  root.set_string("format", kFormat);
  root.set_integer("version", kVersion);
  root.set_string("model", checkpoint.model);
  root.set_string("loss", checkpoint.loss);
  root.set_string("optimizer", checkpoint.optimizer);
  root.set_string("configuration", checkpoint.configuration);
  root.set_integer("seed", checkpoint.seed);
  write_run_state(root, checkpoint.run);
  root.set_string("order", checkpoint.order);
  root.set_integer("image_height", checkpoint.image.height);
  root.set_integer("image_width", checkpoint.image.width);
  root.set_string("summing", checkpoint.summing);
  write_data(root, checkpoint.data);
  write_samples(root, checkpoint.samples);
  if (!checkpoint.frozen.empty()) root.set_strings("frozen", checkpoint.frozen);
  if (!checkpoint.onnx.empty())
    root.write(kOnnx, {checkpoint.onnx.size()},
               std::span(reinterpret_cast<const std::uint8_t*>(checkpoint.onnx.data()), checkpoint.onnx.size()));
  hdf5::Group parameters = root.create_group("parameters");
  std::vector<hdf5::Group> states;
  states.push_back(root.create_group(std::string(kStateNames[0])));
  for (const NamedTensor& tensor : checkpoint.parameters) {
    parameters.write(tensor.name, tensor.shape, std::span(tensor.values));
    while (states.size() < tensor.states.size())
      states.push_back(root.create_group(std::string(kStateNames[states.size()])));
    for (std::size_t i = 0; i < tensor.states.size(); ++i)
      states[i].write(tensor.name, tensor.shape, std::span(tensor.states[i]));
  }
  if (checkpoint.averages()) {
    hdf5::Group averages = root.create_group(kAverage);
    for (const NamedTensor& tensor : checkpoint.parameters)
      averages.write(tensor.name, tensor.shape, std::span(tensor.average));
  }
  AtomicFile whole(file);
  whole.write(sealed(hdf5.image()));
  written();
  whole.commit();
}

Checkpoint read_checkpoint(const std::filesystem::path& file) {
  const hdf5::Group root = open_verified(file);
  Checkpoint checkpoint;
  checkpoint.model = root.string("model");
  if (root.has_attribute("loss")) checkpoint.loss = root.string("loss");
  checkpoint.optimizer = root.string("optimizer");
  checkpoint.configuration = root.string("configuration");
  checkpoint.seed = root.integer("seed");
  checkpoint.run = read_run_state(root);
  checkpoint.order = root.string("order");
  checkpoint.image = {root.integer("image_height"), root.integer("image_width")};
  read_data(root, checkpoint.data);
  checkpoint.samples = read_samples(root);
  if (root.has_attribute("frozen")) checkpoint.frozen = root.strings("frozen");
  checkpoint.summing = root.string("summing");
  if (root.has(kOnnx)) {
    const auto bytes = root.dataset(kOnnx).read<std::uint8_t>();
    checkpoint.onnx.assign(bytes.begin(), bytes.end());
  }
  const hdf5::Group parameters = root.group("parameters");
  std::vector<hdf5::Group> states;
  for (const std::string_view state : kStateNames)
    if (state == kStateNames.front() || root.has(std::string(state))) states.push_back(root.group(std::string(state)));
  for (const std::string& name : parameters.names())
    checkpoint.parameters.push_back(read_parameter(parameters, states, name));
  if (root.has(kAverage))
    for (NamedTensor& tensor : checkpoint.parameters) tensor.average = read_like(tensor, root.group(kAverage));
  return checkpoint;
}

namespace {

bool are_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

void expect_usable(const DatasetInfo& data, const std::filesystem::path& file) {
  if (data.is_text()) {
    if (data.vocabulary == 0 || data.length == 0)
      fail("{}: attributes 'vocabulary' and 'length': {} and {}", file.string(), data.vocabulary, data.length);
    return;
  }
  if (data.classes.empty()) fail("{}: attribute 'classes': empty", file.string());
  if (data.mean.empty() || data.mean.size() != data.stddev.size())
    fail("{}: attributes 'mean' and 'deviation': {} and {} values", file.string(), data.mean.size(),
         data.stddev.size());
  if (!are_finite(data.mean)) fail("{}: attribute 'mean': not a finite number", file.string());
  if (!are_finite(data.stddev) || std::ranges::min(data.stddev) <= 0)
    fail("{}: attribute 'deviation': {} is not a finite number above 0", file.string(), std::ranges::min(data.stddev));
}

}  // namespace

void expect_usable(const Checkpoint& checkpoint, const std::filesystem::path& file) {
  const auto expect_finite = [&](std::string_view group, const std::string& name, const std::vector<float>& values) {
    if (!are_finite(values)) fail("{}: {}/{} holds values that are not finite", file.string(), group, name);
  };
  expect_usable(checkpoint.data, file);
  for (const NamedTensor& tensor : checkpoint.parameters) {
    expect_finite("parameters", tensor.name, tensor.values);
    for (std::size_t i = 0; i < tensor.states.size(); ++i) expect_finite(kStateNames[i], tensor.name, tensor.states[i]);
    expect_finite(kAverage, tensor.name, tensor.average);
  }
}

std::string description(const Checkpoint& checkpoint) {
  return fmt::format("{} after {} steps", checkpoint.model, checkpoint.run.step);
}

std::optional<Score> read_score(const std::filesystem::path& file) try {
  return read_run_state(open_verified(file)).score;
} catch (const Error&) {
  return {};
}

}  // namespace annulus
