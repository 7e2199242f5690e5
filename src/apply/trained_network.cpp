#include "src/apply/trained_network.h"

#include "kernels/base/error.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/onnx/network_file.h"
#include "src/train/training_setup.h"

namespace annulus {
TrainedNetwork read_trained_network(const std::filesystem::path& checkpoint, const std::string& weights,
                                    std::size_t processors) {
  auto [file, read, damaged] = find_checkpoint(checkpoint);
  expect_usable(read, file);
  const InputPlan input = evaluation_input(read, read.data, processors);
  Graph graph = make_network(read.model, read.onnx, task_of(read.data, input, read.loss));
  const bool averaged = takes_average(read, file, weights);
  return {std::move(file), std::move(read), std::move(damaged), averaged, input, std::move(graph)};
}

InputPlan evaluation_input(const Checkpoint& checkpoint, const DatasetInfo& data, std::size_t processors) {
  DataOptions options;
  options.workers = processors;
  options.on_bad_sample = "skip";
  if (checkpoint.image.height == checkpoint.image.width) options.image = checkpoint.image.height;
  return plan_input(options, data, Purpose::evaluation, processors, checkpoint.image);
}

std::string expect_fitting_data(const Checkpoint& checkpoint, const std::filesystem::path& file,
                                const DatasetInfo& data, const std::string& name, bool changed) {
  const DatasetInfo& trained = checkpoint.data;
  if (data.is_text() && trained.is_text() &&
      (data.vocabulary != trained.vocabulary || data.tokenizer != trained.tokenizer))
    fail("{}: its tokenizer differs from that of the text that {} was trained on: import the text with the same one",
         name, file.string());
  if (data.is_text() != trained.is_text())
    fail("{}: it has {}, but {} was trained on {}", name, data.is_text() ? "text" : "images", file.string(),
         trained.is_text() ? "text" : "images");
  if (data.channels != trained.channels)
    fail("{}: images of {} channels, but the network of {} was trained with {}", name, data.channels, file.string(),
         trained.channels);
  if (data.labels != trained.labels)
    fail("{}: its labels are {}, but {} was trained with {}", name, description(data.labels), file.string(),
         description(trained.labels));
  if (data.classes.size() != trained.classes.size() && data.targets() > 0)
    fail("{}: its labels have {} numbers, but {} was trained with {}", name, data.targets(), file.string(),
         trained.targets());
  if (data.classes != trained.classes && !changed)
    fail("{}: its {} differ from those that {} was trained on; use data with the same ones, or --data-changed", name,
         data.labels == LabelKind::values ? "values" : "classes", file.string());
  if (data.mean == trained.mean && data.stddev == trained.stddev) return {};
  return fmt::format("{}: its mean and std differ from those of the training data, which are used instead", name);
}

bool takes_average(const Checkpoint& checkpoint, const std::filesystem::path& file, const std::string& weights) {
  if (weights == "ema" && !checkpoint.averages())
    fail("{} has no averaged weights because its run had no --ema: use --weights raw", file.string());
  return weights != "raw" && checkpoint.averages();
}

}  // namespace annulus
