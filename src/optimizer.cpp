#include "src/optimizer.h"

#include <algorithm>

namespace annulus {
namespace {

// How fast the statistics that inference uses follow those of the batches.
constexpr float kStatisticMomentum = 0.1f;

}  // namespace

Optimizer::Optimizer(Device& device, Parameters& parameters, const SgdStep& rule)
    : device_(device),
      parameters_(parameters),
      weight_rule_(rule),
      offset_rule_(rule),
      velocity_(device.allocate(parameters.weights().bytes)) {
  offset_rule_.weight_decay = 0;
}

void Optimizer::update(const Range& slice) {
  const std::size_t begin = slice.begin * sizeof(float);
  const std::size_t end = slice.end * sizeof(float);
  const auto& all = parameters_.all();
  const auto first = std::ranges::upper_bound(all, begin, {}, [](const Parameter& p) { return p.offset + p.bytes; });
  for (auto p = first; p != all.end() && p->offset < end; ++p) {
    const std::size_t from = std::max(begin, p->offset);
    const std::size_t bytes = std::min(end, p->offset + p->bytes) - from;
    const auto part = [&](DeviceView arena) { return arena.slice(from, bytes); };
    switch (p->role) {
      case Role::weight:
        device_.sgd(part(parameters_.weights()), part(parameters_.gradients()), part(velocity()), weight_rule_);
        break;
      case Role::offset:
        device_.sgd(part(parameters_.weights()), part(parameters_.gradients()), part(velocity()), offset_rule_);
        break;
      case Role::statistic:
        device_.average(part(parameters_.weights()), part(parameters_.gradients()), kStatisticMomentum);
        break;
      case Role::metric:
        break;
    }
  }
}

}  // namespace annulus
