#include "src/apply/export_network.h"

#include <fmt/format.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "models/graph/state_dict.h"
#include "src/apply/trained_network.h"
#include "src/checkpoint/restore.h"
#include "src/io/atomic_file.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"
#include "src/onnx/other_tensors.h"
#include "src/onnx/write.h"
#include "src/weights/safetensors.h"

namespace annulus {
namespace {

std::map<std::string, std::string> image_metadata(const TrainedNetwork& network) {
  const CheckpointHeader& checkpoint = network.checkpoint();
  return {{"mean", nlohmann::json(checkpoint.data.mean).dump()},
          {"deviation", nlohmann::json(checkpoint.data.stddev).dump()},
          {"margin", fmt::format("{}", network.input.margin)}};
}

std::pair<const std::string, std::string> names_metadata(const DatasetInfo& data) {
  return {data.labels == LabelKind::values ? "values" : "classes", nlohmann::json(data.classes).dump()};
}

std::map<std::string, std::string> metadata(const TrainedNetwork& network) {
  const CheckpointHeader& checkpoint = network.checkpoint();
  std::map<std::string, std::string> all{{"model", checkpoint.model},
                                         {"step", fmt::format("{}", checkpoint.run.step)},
                                         {"weights", network.averaged ? "ema" : "raw"}};
  if (checkpoint.data.is_text())
    all.emplace("vocabulary", fmt::format("{}", checkpoint.data.vocabulary));
  else
    all.merge(image_metadata(network));
  if (!checkpoint.data.predicts_tokens()) all.insert(names_metadata(checkpoint.data));
  return all;
}

std::vector<float> values(const TrainedNetwork& network, const std::string& name, const Shape& shape) {
  expect_parameter(network.file, name, shape);
  return network.file.read(network.averaged ? kAverage : kParameters, name);
}

// "run/model.onnx: lenet after 938 steps, averaged weights".
std::string headline(const TrainedNetwork& network, const std::filesystem::path& output) {
  return fmt::format("{}: {}{}", printable(output.string()), printable(description(network.checkpoint())),
                     network.averaged ? ", averaged weights" : "");
}

void export_onnx(const TrainedNetwork& network, const std::filesystem::path& output) {
  std::deque<std::vector<float>> kept;
  const std::string file = to_onnx(
      network.checkpoint().model, network.graph,
      [&](const std::string& name, const Shape& shape) -> std::span<const float> {
        return kept.emplace_back(values(network, name, shape));
      },
      metadata(network));
  write_atomically(output, std::as_bytes(std::span(file)));
  fmt::print("{}, ONNX with operators of version {}, {}\n", headline(network, output), kOnnxOperators,
             format_bytes(file.size()));
  if (network.graph.reads_tokens()) {
    fmt::print("  tokens                 int64, {{batch, {}}}\n", network.graph.tokens().length);
  } else {
    const ImageShape& image = network.graph.image();
    fmt::print("  images                 uint8, {{batch, {}, {}, {}}}: pixels, normalized by the network\n",
               image.height, image.width, image.channels);
  }
  if (network.graph.predicts_tokens())
    return fmt::print("  logits                 float32, {{batch, {}, {}}}\n", network.graph.tokens().length,
                      network.graph.tokens().vocabulary);
  fmt::print("  {:<21}  float32, {{batch, {}}}\n",
             network.checkpoint().data.labels == LabelKind::values ? "values" : "logits, probabilities",
             network.checkpoint().data.classes.size());
}

// The tensors that PyTorch's strict load_state_dict() expects beside the network's.
std::vector<OtherTensor> other_tensors_of(const TrainedNetwork& network, const std::vector<TensorToStore>& tensors) {
  const CheckpointHeader& checkpoint = network.checkpoint();
  if (checkpoint.onnx.empty()) return {};
  std::set<std::string> known;
  for (const TensorToStore& tensor : tensors) known.insert(tensor.name);
  return other_tensors(OnnxFile::parse(checkpoint.onnx, checkpoint.model), known);
}

void export_weights(const TrainedNetwork& network, const std::filesystem::path& output) {
  const auto steps = static_cast<std::int64_t>(network.checkpoint().run.step);
  std::vector<TensorToStore> tensors;
  std::deque<std::vector<float>> kept;
  for (const StateTensor& tensor : state_dict(network.graph)) {
    if (tensor.counts_steps) {
      tensors.push_back({tensor.name, tensor.shape, std::span(&steps, 1)});
      continue;
    }
    std::vector<float>& stored = kept.emplace_back(values(network, tensor.parameter, tensor.parameter_shape));
    if (tensor.transposed) stored = transposed(stored, tensor.parameter_shape);
    tensors.push_back({tensor.name, tensor.shape, std::span<const float>(stored)});
  }
  const auto others = other_tensors_of(network, tensors);
  for (const OtherTensor& other : others)
    std::visit(
        [&](const auto& elements) {
          tensors.push_back({other.name, other.shape, std::span(elements)});
        },
        other.elements);
  const std::uint64_t bytes = write_safetensors(output, tensors, metadata(network));
  fmt::print("{}, {} tensors of PyTorch's state_dict, {}\n", headline(network, output), tensors.size(),
             format_bytes(bytes));
}

}  // namespace

FileKind export_kind(const std::filesystem::path& output) {
  return output.extension() == ".safetensors" ? FileKind::weights : FileKind::onnx;
}

void expect_export_name(const std::filesystem::path& output) {
  const std::string extension = output.extension().string();
  if (extension.empty() || extension == ".onnx" || extension == ".safetensors") return;
  fail(
      "{}: files of the extension {} are not written: name it .onnx for the network, or .safetensors for its weights, "
      "which PyTorch reads with model.load_state_dict(safetensors.torch.load_file(FILE))",
      output.string(), extension);
}

void export_network(const ExportOptions& options) {
  const TrainedNetwork network = read_trained_network(options.checkpoint, options.weights, 1);
  for (const std::string& line : network.damaged) fmt::print("{}\n", printable(line));
  if (export_kind(options.output) == FileKind::weights)
    export_weights(network, options.output);
  else
    export_onnx(network, options.output);
}

}  // namespace annulus
