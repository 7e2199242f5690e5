#include "src/alike.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "kernels/error.h"
#include "kernels/subnormals.h"
#include "src/agreement.h"
#include "src/hash.h"

namespace annulus {
namespace {

// One field for every option, so that none is forgotten: lines such as lr=0.05.
void add_configuration(Agreement& agreement, const std::string& toml) {
  constexpr std::array<std::string_view, 8> kOfTheMachine = {"data",     "from",    "json", "out",
                                                             "prefetch", "threads", "tune", "workers"};
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find('='));
    if (std::ranges::find(kOfTheMachine, name) == kOfTheMachine.end())
      agreement.add("--" + name, line.substr(std::min(line.size(), name.size() + 1)));
  }
}

void add_timeline(Agreement& agreement, const TimelineOptions& options) {
  agreement.add("--timeline, given or not,", !options.file.empty());
}

void add_data(Agreement& agreement, const std::vector<DataField>& fields) {
  for (const DataField& field : fields) agreement.add(field.name, field.value);
}

void add_checkpoint(Agreement& agreement, const Checkpoint& checkpoint) {
  agreement.add("the checkpoint", fmt::format("{} after {} steps", checkpoint.model, checkpoint.step));
}

std::string hash_names(const Samples& images) {
  Hash hash;
  for (std::size_t i = 0; i < images.info().size; ++i) hash.add(std::span<const char>(images.place(i)));
  return hash.text();
}

}  // namespace

void check_same_command(const World& world, const std::string& command) {
  Agreement agreement(world);
  agreement.add("the program's version", ANNULUS_VERSION);
  agreement.add("the command", command);
  agreement.add("the treatment of subnormal numbers", flushes_subnormals() ? "flush to zero" : "keep");
  agreement.check();
}

void check_alike(const World& world, const TrainOptions& options, const std::vector<DataField>& data) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  agreement.add("--resume", options.resume);
  add_timeline(agreement, options.timeline);
  agreement.add("--data-changed", options.data_changed);
  add_data(agreement, data);
  agreement.check();
}

void check_alike(const World& world, const EvaluateOptions& options, const Dataset& dataset,
                 const Checkpoint& checkpoint) {
  Agreement agreement(world);
  agreement.add("--split", options.split);
  agreement.add("--weights", options.weights);
  agreement.add("--batch", options.batch);
  add_checkpoint(agreement, checkpoint);
  agreement.add("--data-changed", options.data_changed);
  add_data(agreement, data_fields(dataset.info(), sample_fields("evaluated", dataset)));
  agreement.check();
}

void check_alike(const World& world, const PredictOptions& options, const Checkpoint& checkpoint,
                 std::span<const Samples* const> images) {
  Agreement agreement(world);
  agreement.add("--weights", options.weights);
  agreement.add("--batch", options.batch);
  agreement.add("--top", options.top);
  agreement.add("--data-changed", options.data_changed);
  add_checkpoint(agreement, checkpoint);
  agreement.add("the number of sources of images", images.size());
  for (const Samples* some : images) {
    agreement.add("the number of images", some->info().size);
    agreement.add("a hash of the images' names", hash_names(*some));
  }
  agreement.check();
}

void check_alike(const World& world, const BenchStepOptions& options, const Checkpoint* from) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  if (from != nullptr) add_checkpoint(agreement, *from);
  add_timeline(agreement, options.timeline);
  agreement.check();
}

void check_alike(const World& world, const std::string& configuration) {
  Agreement agreement(world);
  add_configuration(agreement, configuration);
  agreement.check();
}

void check_same_network(const World& world, const Model& model) {
  std::string layouts;
  for (const Parameter& p : model.parameters().all())
    layouts += fmt::format("{} {} {} {} at {}\n", p.name, to_string(p.spec.shape), static_cast<int>(p.spec.type),
                           p.spec.layout ? p.spec.layout->name() : "", p.offset);
  Agreement agreement(world);
  agreement.add("the network", model.graph().description());
  agreement.add("how parameters lie in memory (processors of one kind choose alike)", layouts);
  agreement.check();
}

}  // namespace annulus
