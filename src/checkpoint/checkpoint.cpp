#include "src/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "src/checkpoint/stored_score.h"
#include "src/io/atomic_file.h"
#include "src/io/file_io.h"
#include "src/io/hash.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

constexpr const char* kFormat = "annulus checkpoint";
constexpr std::uint64_t kVersion = 4;
constexpr const char* kOnnx = "onnx";
constexpr std::array kGroups{kParameters, kStateNames[0], kStateNames[1], kAverage, kOuterVelocity};

// A file's end, behind the HDF5 part that the checksum covers.
struct Seal {
  std::array<char, 8> mark = {'s', 'e', 'a', 'l', 'e', 'd', ' ', '2'};
  std::uint64_t checksum = 0;
};

// Seals the bytes before `end`.
Seal seal_of(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t end) {
  Hash hash;
  std::vector<std::uint8_t> piece(1 << 20);
  for (std::uint64_t position = 0; position < end; position += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), end - position));
    read_at(descriptor, file, position, piece);
    hash.add(std::span<const std::uint8_t>(piece));
  }
  return {.checksum = hash.value()};
}

// Completes a file that HDF5 has written under the temporary name.
void add_seal(AtomicFile& file, const std::filesystem::path& partial) {
  const FileDescriptor written = open_to_read(partial);
  const std::uint64_t end = size_of(written, partial);
  const Seal seal = seal_of(written, partial, end);
  file.write_at(end, {reinterpret_cast<const std::uint8_t*>(&seal), sizeof seal});
}

// Called before HDF5 opens the file, because HDF5 may crash on a damaged file. Returns whether there is a seal.
bool verify_seal(const std::filesystem::path& file) {
  const FileDescriptor descriptor = open_to_read(file);
  const std::uint64_t size = size_of(descriptor, file);
  Seal seal;
  if (size < sizeof seal) return false;
  const std::uint64_t end = size - sizeof seal;
  read_at(descriptor, file, end, {reinterpret_cast<std::uint8_t*>(&seal), sizeof seal});
  if (seal.mark != Seal{}.mark) return false;
  if (seal_of(descriptor, file, end).checksum != seal.checksum)
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

void write_run_state(hdf5::Group& root, const RunState& state) {
  for (const RunStateField& field : kRunStateFields)
    if (const auto value = field.get(state)) root.set_integer(field.name, *value);
  if (state.score) write_stored_score(root, *state.score);
}

RunState read_run_state(const hdf5::Group& root) {
  if (root.has_attribute("loss_scale") != root.has_attribute("good_steps"))
    fail("{}: of the attributes 'loss_scale' and 'good_steps' one is missing", root.place());
  RunState state;
  for (const RunStateField& field : kRunStateFields)
    if (field.required || root.has_attribute(field.name)) field.set(state, root.integer(field.name));
  state.score = read_stored_score(root);
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
  root.set_integer("mask_token", data.mask_token);
  root.set_integer("prediction", static_cast<std::uint64_t>(data.prediction));
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
  if (!root.has_attribute("vocabulary")) return;
  data.vocabulary = root.integer("vocabulary");
  data.length = root.integer("length");
  data.mask_token = root.has_attribute("mask_token") ? root.integer("mask_token") : data.vocabulary;
  if (const std::uint64_t kind = root.has_attribute("prediction") ? root.integer("prediction") : 0;
      kind <= static_cast<std::uint64_t>(Prediction::label))
    data.prediction = static_cast<Prediction>(kind);
  else
    fail("{}: attribute 'prediction': {}", root.place(), kind);
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

hdf5::Group open_verified(const std::filesystem::path& file) {
  const bool has_seal = verify_seal(file);
  const hdf5::File hdf5(file);
  require_known_format(hdf5.root(), has_seal);
  return hdf5.root();
}

// Rewrites earlier options in an order, such as --shuffle block --shuffle-block 64.
std::string current_order(std::string order) {
  for (const auto& [before, now] :
       {std::pair<std::string, const char*>{" --shuffle-block ", ",size="}, {" --shuffle-window ", ",window="}})
    if (const std::size_t at = order.find(before); at != std::string::npos) order.replace(at, before.size(), now);
  return order;
}

CheckpointHeader read_header(const hdf5::Group& root) {
  CheckpointHeader header;
  header.model = root.string("model");
  if (root.has_attribute("loss")) header.loss = root.string("loss");
  header.optimizer = root.string("optimizer");
  header.configuration = root.string("configuration");
  header.seed = root.integer("seed");
  header.run = read_run_state(root);
  header.order = current_order(root.string("order"));
  header.image = {root.integer("image_height"), root.integer("image_width")};
  read_data(root, header.data);
  header.samples = read_samples(root);
  if (root.has_attribute("frozen")) header.frozen = root.strings("frozen");
  if (root.has_attribute("cuts")) header.cuts = root.strings("cuts");
  header.summing = root.string("summing");
  if (root.has(kOnnx)) {
    const auto bytes = root.dataset(kOnnx).read<std::uint8_t>();
    header.onnx.assign(bytes.begin(), bytes.end());
  }
  return header;
}

// Returns the bytes of a file without arrays.
std::vector<std::byte> image_of(const std::filesystem::path& file, const CheckpointHeader& header) {
  hdf5::NewFile hdf5(file);
  hdf5::Group root = hdf5.root();
  root.set_string("format", kFormat);
  root.set_integer("version", kVersion);
  root.set_string("model", header.model);
  root.set_string("loss", header.loss);
  root.set_string("optimizer", header.optimizer);
  root.set_string("configuration", header.configuration);
  root.set_integer("seed", header.seed);
  write_run_state(root, header.run);
  root.set_string("order", header.order);
  root.set_integer("image_height", header.image.height);
  root.set_integer("image_width", header.image.width);
  root.set_string("summing", header.summing);
  write_data(root, header.data);
  write_samples(root, header.samples);
  if (!header.frozen.empty()) root.set_strings("frozen", header.frozen);
  if (!header.cuts.empty()) root.set_strings("cuts", header.cuts);
  if (!header.onnx.empty())
    root.write(kOnnx, {header.onnx.size()},
               std::span(reinterpret_cast<const std::uint8_t*>(header.onnx.data()), header.onnx.size()));
  for (const std::string_view group : {kParameters, kStateNames.front()}) root.create_group(std::string(group));
  return hdf5.image();
}

void write_arrays(const std::filesystem::path& file, const ArraySource& arrays) {
  hdf5::FileToExtend extended(file);
  arrays.for_each([&extended](const CheckpointArray& array) {
    const std::string group(array.group);
    hdf5::Group root = extended.root();
    if (!root.has(group)) root.create_group(group);
    root.group(group).write(array.name, array.shape, array.values);
  });
  extended.close();
}

}  // namespace

std::vector<CheckpointArray> arrays_of(const NamedTensor& tensor) {
  std::vector<CheckpointArray> arrays;
  const auto add = [&](std::string_view group, const std::vector<float>& values) {
    arrays.push_back({group, tensor.name, tensor.shape, values});
  };
  add(kParameters, tensor.values);
  for (std::size_t i = 0; i < tensor.states.size(); ++i) add(kStateNames[i], tensor.states[i]);
  if (!tensor.average.empty()) add(kAverage, tensor.average);
  if (!tensor.outer_velocity.empty()) add(kOuterVelocity, tensor.outer_velocity);
  return arrays;
}

ArraySource arrays_of(const Checkpoint& checkpoint) {
  ArraySource source{.for_each = [&checkpoint](const auto& visit) {
    for (const NamedTensor& tensor : checkpoint.parameters)
      for (const CheckpointArray& array : arrays_of(tensor)) visit(array);
  }};
  source.for_each([&source](const CheckpointArray& array) {
    ++source.arrays;
    source.values += array.values.size();
  });
  return source;
}

void write_checkpoint(const std::filesystem::path& file, const CheckpointHeader& header, const ArraySource& arrays,
                      const std::function<void()>& written) {
  AtomicFile whole(file);
  const std::filesystem::path partial = AtomicFile::partial(file);
  const std::vector<std::byte> image = image_of(file, header);
  whole.write(image);
  whole.reserve(image.size() + arrays.values * sizeof(float) +
                hdf5::FileToExtend::space_for(arrays.arrays, kGroups.size()));
  write_arrays(partial, arrays);
  add_seal(whole, partial);
  written();
  whole.commit();
}

void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint) {
  write_checkpoint(file, checkpoint, arrays_of(checkpoint));
}

CheckpointFile::CheckpointFile(const std::filesystem::path& path)
    : path_(path),
      root_(open_verified(path)),
      header_(read_header(root_)),
      names_(root_.group(std::string(kParameters)).names()) {
  root_.group(std::string(kStateNames.front()));
}

bool CheckpointFile::has(std::string_view group, const std::string& name) const {
  return root_.has(std::string(group)) && root_.group(std::string(group)).has(name);
}

Shape CheckpointFile::shape(const std::string& name) const {
  return root_.group(std::string(kParameters)).dataset(name).shape();
}

std::vector<float> CheckpointFile::read(std::string_view group, const std::string& name) const {
  const hdf5::Dataset values = root_.group(std::string(group)).dataset(name);
  if (!values.holds<float>()) fail("{}: must hold float32", values.place());
  if (values.shape() != shape(name))
    fail("{}: shape {}, but the parameter's is {}", values.place(), to_string(values.shape()), to_string(shape(name)));
  return values.read<float>();
}

ArraySource CheckpointFile::arrays() const {
  return {.for_each = [this](const auto& visit) {
    for (const std::string& name : names_) {
      const Shape of_parameter = shape(name);
      for (const std::string_view group : kGroups)
        if (has(group, name)) visit({group, name, of_parameter, read(group, name)});
    }
  }};
}

Checkpoint read_checkpoint(const std::filesystem::path& path) {
  return read_checkpoint(CheckpointFile(path));
}

Checkpoint read_checkpoint(const CheckpointFile& file) {
  Checkpoint checkpoint{file.header(), {}};
  for (const std::string& name : file.names()) {
    NamedTensor tensor{name, file.shape(name), file.read(kParameters, name), {}};
    for (const std::string_view state : kStateNames)
      if (file.has(state, name)) tensor.states.push_back(file.read(state, name));
    if (file.has(kAverage, name)) tensor.average = file.read(kAverage, name);
    if (file.has(kOuterVelocity, name)) tensor.outer_velocity = file.read(kOuterVelocity, name);
    checkpoint.parameters.push_back(std::move(tensor));
  }
  return checkpoint;
}

namespace {

bool are_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

void expect_usable(const DatasetInfo& data, const std::filesystem::path& file) {
  if (data.is_text() || data.predicts_tokens()) {
    if (data.vocabulary == 0 || data.length == 0)
      fail("{}: attributes 'vocabulary' and 'length': {} and {}", file.string(), data.vocabulary, data.length);
    if (data.predicts_tokens()) return;
  }
  if (data.classes.empty()) fail("{}: attribute 'classes': empty", file.string());
  if (data.is_text()) return;
  if (data.mean.empty() || data.mean.size() != data.stddev.size())
    fail("{}: attributes 'mean' and 'deviation': {} and {} values", file.string(), data.mean.size(),
         data.stddev.size());
  if (!are_finite(data.mean)) fail("{}: attribute 'mean': not a finite number", file.string());
  if (!are_finite(data.stddev) || std::ranges::min(data.stddev) <= 0)
    fail("{}: attribute 'deviation': {} is not a finite number above 0", file.string(), std::ranges::min(data.stddev));
}

}  // namespace

void expect_usable(const CheckpointHeader& header, const ArraySource& arrays, const std::filesystem::path& file) {
  expect_usable(header.data, file);
  arrays.for_each([&](const CheckpointArray& array) {
    if (!are_finite(array.values))
      fail("{}: {}/{} holds values that are not finite", file.string(), array.group, array.name);
  });
}

void expect_usable(const CheckpointFile& file) {
  expect_usable(file.header(), file.arrays(), file.path());
}

std::string description(const CheckpointHeader& checkpoint) {
  return fmt::format("{} after {} steps", checkpoint.model, checkpoint.run.step);
}

std::optional<Score> read_score(const std::filesystem::path& file) try {
  return read_run_state(open_verified(file)).score;
} catch (const Error&) {
  return {};
}

}  // namespace annulus
