#include "src/apply/export_onnx.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/onnx/write.h"
#include "src/apply/trained_network.h"
#include "src/checkpoint/restore.h"
#include "src/io/atomic_file.h"
#include "src/io/bytes.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

std::map<std::string, std::string> metadata(const TrainedNetwork& network) {
  const Checkpoint& checkpoint = network.checkpoint;
  return {{"model", checkpoint.model},
          {"step", fmt::format("{}", checkpoint.run.step)},
          {"weights", network.averaged ? "ema" : "raw"},
          {"classes", nlohmann::json(checkpoint.data.classes).dump()},
          {"mean", nlohmann::json(checkpoint.data.mean).dump()},
          {"deviation", nlohmann::json(checkpoint.data.stddev).dump()},
          {"margin", fmt::format("{}", network.input.margin)}};
}

}  // namespace

void export_onnx(const ExportOptions& options) {
  const TrainedNetwork network = read_trained_network(options.checkpoint, options.weights, 1);
  for (const std::string& line : network.damaged) fmt::print("{}\n", printable(line));
  const auto values = [&network](const std::string& name, const Shape& shape) {
    return std::span(network.weights(find(network.checkpoint, network.file, name, shape)));
  };
  const std::string file = to_onnx(network.checkpoint.model, network.graph, values, metadata(network));
  write_atomically(options.output, std::as_bytes(std::span(file)));
  const ImageShape& image = network.graph.image();
  fmt::print(
      "{}: {} after {} steps{}, ONNX with operators of version {}, {}\n"
      "  images                 uint8, {{batch, {}, {}, {}}}: pixels, normalized by the network\n"
      "  logits, probabilities  float32, {{batch, {}}}\n",
      printable(options.output.string()), printable(network.checkpoint.model), network.checkpoint.run.step,
      network.averaged ? ", averaged weights" : "", kOnnxOperators, format_bytes(file.size()), image.height,
      image.width, image.channels, network.checkpoint.data.classes.size());
}

}  // namespace annulus
