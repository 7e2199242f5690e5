#include "src/evaluate.h"

#include <algorithm>
#include <array>

#include "kernels/split.h"

namespace annulus {

Evaluation evaluate(const World& world, Model& model, const Dataset& dataset, std::size_t batch, Activity& activity) {
  activity.enter(Activity::Phase::evaluation);
  const DatasetInfo& info = dataset.info();
  const Range share = split(info.size, static_cast<std::size_t>(world.size()), static_cast<std::size_t>(world.rank()));
  std::vector<std::uint8_t> images(batch * info.image_bytes());
  std::vector<std::int32_t> labels(batch);
  std::array<double, 2> sums{};
  for (std::size_t begin = share.begin; begin < share.end; begin += batch) {
    const std::size_t count = std::min(batch, share.end - begin);
    for (std::size_t i = 0; i < count; ++i) {
      dataset.read_image(begin + i, std::span(images).subspan(i * info.image_bytes(), info.image_bytes()));
      labels[i] = dataset.label(begin + i);
    }
    Network& network = model.network(Mode::inference, count);
    network.load(std::span(images).first(count * info.image_bytes()), std::span(labels).first(count));
    network.forward([&activity](std::size_t) { activity.tick(); });
    const LossSums batch_sums = network.loss();
    sums[0] += batch_sums.loss;
    sums[1] += batch_sums.correct;
  }
  activity.enter(Activity::Phase::meeting);
  world.sum(sums);
  return {info.size, static_cast<std::size_t>(sums[1]), sums[0] / static_cast<double>(info.size)};
}

}  // namespace annulus
