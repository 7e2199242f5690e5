#include "src/alike.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>
#include <string_view>

#include "src/agreement.h"

namespace annulus {
namespace {

constexpr std::size_t kImagesCompared = 256;  // of each split: a pixel that was changed on purpose may go unseen

// A running hash, whatever it is fed with.
class Hash {
 public:
  template <class T>
  void add(std::span<const T> values) {
    XXH3_64bits_update(state_.get(), values.data(), values.size_bytes());
  }
  std::string text() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  static XXH3_state_t* make() {
    XXH3_state_t* state = XXH3_createState();
    XXH3_64bits_reset(state);
    return state;
  }
  std::unique_ptr<XXH3_state_t, Free> state_{make()};
};

std::string hash_labels(const Dataset& dataset) {
  Hash hash;
  for (std::size_t sample = 0; sample < dataset.info().size; ++sample) {
    const std::int32_t label = dataset.label(sample);
    hash.add(std::span(&label, 1));
  }
  return hash.text();
}

// Of images spread evenly over the data set.
std::string hash_pixels(const Dataset& dataset) {
  Hash hash;
  const std::size_t size = dataset.info().size;
  const std::size_t count = std::min(size, kImagesCompared);
  std::vector<std::uint8_t> image(dataset.info().image_bytes());
  for (std::size_t i = 0; i < count; ++i) {
    dataset.read_image(i * size / count, image);
    hash.add(std::span<const std::uint8_t>(image));
  }
  return hash.text();
}

// One field for every option, so that none is forgotten: lines such as lr=0.05.
void add_configuration(Agreement& agreement, const std::string& toml) {
  constexpr std::array<std::string_view, 5> kOfTheMachine = {"data", "json", "out", "threads", "tune"};
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

void add_dataset(Agreement& agreement, const std::string& split, const Dataset& dataset) {
  const DatasetInfo& info = dataset.info();
  agreement.add("the number of " + split + " images", info.size);
  agreement.add("the size of " + split + " images", fmt::format("{}x{}x{}", info.height, info.width, info.channels));
  agreement.add("the classes", fmt::format("{}", fmt::join(info.classes, ", ")));
  agreement.add("the pixels' mean", fmt::format("{}", fmt::join(info.mean, ", ")));
  agreement.add("the pixels' deviation", fmt::format("{}", fmt::join(info.deviation, ", ")));
  agreement.add("a hash of the " + split + " labels", hash_labels(dataset));
  agreement.add("a hash of the " + split + " images", hash_pixels(dataset));
}

}  // namespace

void check_same_command(const World& world, const std::string& command) {
  Agreement agreement(world);
  agreement.add("the program's version", ANNULUS_VERSION);
  agreement.add("the command", command);
  agreement.check();
}

void check_alike(const World& world, const TrainOptions& options, const Dataset& training, const Dataset& test) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  agreement.add("--resume", options.resume);
  add_timeline(agreement, options.timeline);
  add_dataset(agreement, "training", training);
  add_dataset(agreement, "test", test);
  agreement.check();
}

void check_alike(const World& world, const EvaluateOptions& options, const Dataset& dataset,
                 const Checkpoint& checkpoint) {
  Agreement agreement(world);
  agreement.add("--split", options.split);
  agreement.add("--batch", options.batch);
  agreement.add("the checkpoint", fmt::format("{} after {} steps", checkpoint.model, checkpoint.step));
  add_dataset(agreement, "evaluated", dataset);
  agreement.check();
}

void check_alike(const World& world, const BenchStepOptions& options) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
  add_timeline(agreement, options.timeline);
  agreement.check();
}

void check_alike(const World& world, const BenchAllReduceOptions& options) {
  Agreement agreement(world);
  add_configuration(agreement, options.configuration);
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
