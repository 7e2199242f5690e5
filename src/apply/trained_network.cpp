#include "src/apply/trained_network.h"

#include "kernels/base/error.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/onnx/network_file.h"
#include "src/train/training_setup.h"

namespace annulus {
TrainedNetwork read_trained_network(const std::filesystem::path& checkpoint, const std::string& weights,
                                    std::size_t processors) {
  auto [file, damaged] = find_checkpoint(checkpoint);
  expect_usable(file);
  const CheckpointHeader& header = file.header();
  const InputPlan input = evaluation_input(header, header.data, processors);
  Graph graph = make_network(header.model, header.onnx, task_of(header.data, input, header.loss));
  const bool averaged = takes_average(file, weights);
  return {std::move(file), std::move(damaged), averaged, input, std::move(graph)};
}

InputPlan evaluation_input(const CheckpointHeader& checkpoint, const DatasetInfo& data, std::size_t processors) {
  DataOptions options;
  options.workers = processors;
  options.on_bad_sample = "skip";
  if (checkpoint.image.height == checkpoint.image.width) options.image = checkpoint.image.height;
  return plan_input(options, data, Purpose::evaluation, processors, checkpoint.image);
}

std::string expect_fitting_data(const CheckpointFile& file, const DatasetInfo& data, const std::string& name,
                                bool changed) {
  const DatasetInfo& trained = file.header().data;
  if (data.is_text() && trained.is_text() &&
      (data.vocabulary != trained.vocabulary || data.tokenizer != trained.tokenizer))
    fail("{}: its tokenizer differs from that of the text that {} was trained on: import the text with the same one",
         name, file.path().string());
  if (data.is_text() != trained.is_text())
    fail("{}: it has {}, but {} was trained on {}", name, data.is_text() ? "text" : "images", file.path().string(),
         trained.is_text() ? "text" : "images");
  if (data.channels != trained.channels)
    fail("{}: images of {} channels, but the network of {} was trained with {}", name, data.channels,
         file.path().string(), trained.channels);
  if (data.labels != trained.labels)
    fail("{}: its labels are {}, but {} was trained with {}", name, description(data.labels), file.path().string(),
         description(trained.labels));
  if (data.classes.size() != trained.classes.size() && data.targets() > 0)
    fail("{}: its labels have {} numbers, but {} was trained with {}", name, data.targets(), file.path().string(),
         trained.targets());
  if (data.classes != trained.classes && !changed)
    fail("{}: its {} differ from those that {} was trained on; use data with the same ones, or --data-changed", name,
         data.labels == LabelKind::values ? "values" : "classes", file.path().string());
  if (data.mean == trained.mean && data.stddev == trained.stddev) return {};
  return fmt::format("{}: its mean and std differ from those of the training data, which are used instead", name);
}

bool takes_average(const CheckpointFile& file, const std::string& weights) {
  if (weights == "ema" && !file.averages())
    fail("{} has no averaged weights because its run had no --ema: use --weights raw", file.path().string());
  return weights != "raw" && file.averages();
}

}  // namespace annulus
