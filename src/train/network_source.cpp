#include "src/train/network_source.h"

#include <array>
#include <utility>

#include "kernels/base/error.h"
#include "models/rewrites/freeze.h"
#include "src/onnx/causality.h"
#include "src/onnx/network_file.h"
#include "src/onnx/other_tensors.h"
#include "src/onnx/read.h"

namespace annulus {
namespace {

NetworkSource read_source(const TrainOptions& options, const Task& task, const CheckpointFolder& checkpoints) {
  if (options.resume && !std::filesystem::exists(options.model))
    if (auto stored = checkpoints.newest()) return {stored->file.header().onnx, {}, {}, {}, {}};
  OnnxFile file = OnnxFile::read(options.model);
  file.set_pixels(parse_pixels(options.pixels));
  ImportedNetwork network = read_network(file, task);
  expect_causal(file, network);
  network.notes.insert(network.notes.begin(), network.trained.text());
  const auto frozen = frozen_names(network.graph);
  std::set<std::string> buffers(frozen.begin(), frozen.end()), others;
  for (const OtherTensor& tensor : other_tensors(file, {})) others.insert(tensor.name);
  return {without_parameters(file, network), std::move(buffers), std::move(others), std::move(network.values),
          std::move(network.notes)};
}

ImageSize read_image_size(const TrainOptions& options, const CheckpointFolder& checkpoints) {
  if (options.resume)
    if (const auto stored = checkpoints.newest()) return stored->file.header().image;
  if (!is_network_file(options.model)) return {};
  const Task exported = default_task(options.model);
  return {exported.image.height, exported.image.width};
}

}  // namespace

NetworkSource open_network(const World& world, const TrainOptions& options, const Task& task,
                           const CheckpointFolder& checkpoints) {
  NetworkSource source;
  if (!is_network_file(options.model)) {
    if (options.pixels != "auto")
      fail("--pixels is for the network of an ONNX file, and --model {} is not", options.model);
    return source;
  }
  if (world.root()) source = read_source(options, task, checkpoints);
  std::array<std::uint64_t, 1> length{source.onnx.size()};
  world.broadcast(std::as_writable_bytes(std::span(length)));
  source.onnx.resize(length[0]);
  world.broadcast(std::as_writable_bytes(std::span(source.onnx)));
  return source;
}

ImageSize network_image_size(const World& world, const TrainOptions& options, const CheckpointFolder& checkpoints) {
  ImageSize size;
  if (world.root()) size = read_image_size(options, checkpoints);
  world.broadcast(std::as_writable_bytes(std::span(&size, 1)));
  return size;
}

}  // namespace annulus
