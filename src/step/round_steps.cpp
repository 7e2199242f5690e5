#include "src/step/round_steps.h"

#include <algorithm>

namespace annulus {

RoundSteps::RoundSteps(const StepPlan& round, std::size_t ranks, std::size_t part_size, std::size_t steps)
    : samples_(steps), parts_(ranks) {
  if (round.piece_size > 0) {
    add_steps(round, ranks);
    return;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    spread(parts_[rank], round.share(static_cast<int>(rank), static_cast<int>(ranks), 0, part_size).size(), part_size);
}

void RoundSteps::add_steps(const StepPlan& round, std::size_t ranks) {
  for (std::size_t step = 0; step < size(); ++step) {
    samples_[step] = std::min(round.piece_size, round.global_batch() - step * round.piece_size);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (split(samples_[step], ranks, rank).size() > 0) parts_[rank].push_back({step, step});
  }
}

void RoundSteps::spread(std::vector<Part>& parts, std::size_t samples, std::size_t part_size) {
  const std::size_t count = (samples + part_size - 1) / part_size;
  for (std::size_t part = 0; part < count; ++part) {
    parts.push_back({part * size() / count, ((part + 1) * size() + count - 1) / count - 1});
    samples_[parts.back().due] += std::min(part_size, samples - part * part_size);
  }
}

bool RoundSteps::contributes(std::size_t rank, std::size_t step) const {
  return std::ranges::binary_search(parts_[rank], step, {}, &Part::due);
}

}  // namespace annulus
