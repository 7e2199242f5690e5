#include "kernels/matrix_exchange.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace annulus {

std::vector<std::vector<std::size_t>> share_by_cost(const std::vector<double>& costs, std::size_t ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t item) { return costs[item]; });
  std::vector<std::vector<std::size_t>> shares(ranks);
  std::vector<double> loads(ranks);
  for (const std::size_t item : order) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
    shares[least].push_back(item);
    loads[least] += costs[item];
  }
  return shares;
}

namespace {

// The multiplications of a step, up to a constant factor.
double cost(const UpdateSegment& matrix) {
  const MatrixSize size = matrix_size(matrix.tensor.shape);
  const auto least = static_cast<double>(std::min(size.rows, size.columns));
  const auto most = static_cast<double>(std::max(size.rows, size.columns));
  return least * least * (3 * most + least);
}

}  // namespace

std::vector<UpdateSegment> matrices_of(const std::vector<UpdateSegment>& segments) {
  std::vector<UpdateSegment> matrices;
  std::ranges::copy_if(segments, std::back_inserter(matrices),
                       [](const UpdateSegment& segment) { return segment.factors.orthogonalizes; });
  return matrices;
}

std::span<const UpdateSegment> matrices_in(const Range& slice, std::span<const UpdateSegment> matrices) {
  const auto place = [](const UpdateSegment& matrix) { return matrix.range.begin; };
  const auto first = std::ranges::lower_bound(matrices, slice.begin, {}, place);
  return {first, std::ranges::lower_bound(first, matrices.end(), slice.end, {}, place)};
}

MatrixShares::MatrixShares(const UpdateArenas& arenas, std::vector<UpdateSegment> all) : matrices(std::move(all)) {
  constexpr std::size_t kUnit = 64;       // see MatrixExchange::gather()
  constexpr std::size_t kPart = 1 << 18;  // floats; a smaller part would make more rounds, and a larger one take memory
  std::vector<double> costs;
  std::size_t capacity = kPart;
  const KeptPlaces places(arenas.kept);
  for (const UpdateSegment& matrix : matrices) {
    costs.push_back(cost(matrix));
    ranges.push_back(matrix.range);
    capacity = std::max(capacity, matrix.range.size());
    kept.emplace_back();
    for (const Range& range : kept_parts(arenas, matrix.range)) kept.back().push_back({range, places.of(range.begin)});
  }
  const auto shares = share_by_cost(costs, arenas.exchange->ranks());
  for (std::size_t rank = 0; rank < shares.size(); ++rank)
    for (std::size_t round = 0, place = 0; const std::size_t matrix : shares[rank]) {
      if (place + ranges[matrix].size() > capacity) {
        ++round;
        place = 0;
      }
      if (round == rounds.size()) rounds.push_back({.owners = std::vector<std::vector<Owned>>(shares.size())});
      rounds[round].owners[rank].push_back({matrix, place});
      place += ranges[matrix].size();
      rounds[round].part = std::max(rounds[round].part, (place + kUnit - 1) / kUnit * kUnit);
    }
}

std::size_t MatrixShares::largest_part() const {
  std::size_t largest = 0;
  for (const Round& round : rounds) largest = std::max(largest, round.part);
  return largest;
}

}  // namespace annulus
