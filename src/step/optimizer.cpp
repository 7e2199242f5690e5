#include "src/step/optimizer.h"

#include <algorithm>
#include <utility>

#include "kernels/divergence.h"

namespace annulus {
namespace {

std::vector<UpdateSegment> segments_of(const Parameters& parameters, const Optimizer::FactorsOf& factors_of) {
  std::vector<UpdateSegment> all;
  for (const Parameter& p : parameters.updated())
    all.push_back({{p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)},
                   p.role,
                   factors_of(p.name),
                   p.statistic_momentum,
                   p.spec});
  return all;
}

}  // namespace

Optimizer::Optimizer(Device& device, Parameters& parameters, const UpdateRule& rule, float rate,
                     const Averaging& averaging, Keeps keeps, const FactorsOf& factors_of)
    : device_(device),
      updates_on_(&device),
      parameters_(parameters),
      all_{0, parameters.gradients().bytes / sizeof(float)},
      kind_(rule),
      name_(optimizer_name(rule)),
      rate_(rate),
      next_rate_(rate),
      whole_parameters_(annulus::needs_whole_parameters(rule)),
      segments_(segments_of(parameters, factors_of)),
      averaging_(averaging),
      arrived_(segments_.size()) {
  if (keeps == Keeps::all) plan(arenas(), parameters.gradients().bytes);
}

void Optimizer::keep(const std::vector<Range>& slices, const SumOverRanks& sum, Device& device, UpdateArenas arenas) {
  updates_on_ = &device;
  kept_ = arenas.kept = slices;
  arenas.sum_over_ranks = sum;
  std::size_t size = 0;
  for (const Range& slice : slices) size += slice.size();
  plan(std::move(arenas), size * sizeof(float));
}

void Optimizer::share_matrices(MatrixExchange& exchange) {
  shares_matrices_ = true;
  UpdateArenas all = arenas();
  all.exchange = &exchange;
  plan(std::move(all), all_.size() * sizeof(float));
}

// `bytes`: of each state, and of the average.
void Optimizer::plan(UpdateArenas arenas, std::size_t bytes) {
  rule_.reset();
  states_.clear();
  average_ = {};
  for (std::size_t i = 0; i < annulus::states(kind_); ++i) {
    states_.push_back(updates_on_->allocate(bytes));
    arenas.states[i] = state(i);
  }
  if (averaging_.on()) average_ = updates_on_->allocate(bytes);
  arenas.average = average();
  arenas.averaging = averaging_;
  rule_ = updates_on_->plan(kind_, arenas, segments_);
}

bool Optimizer::diverged() const {
  const auto* divergence = dynamic_cast<const Divergence*>(rule_.get());
  return divergence != nullptr && divergence->diverged();
}

void Optimizer::forget_divergence() {
  if (auto* const divergence = dynamic_cast<Divergence*>(rule_.get())) divergence->forget();
}

template <class Visit>
void Optimizer::for_each_kept(Visit visit) const {
  std::size_t begin = 0;
  for (const Range& slice : kept_.empty() ? std::vector{all_} : kept_) {
    const std::size_t bytes = slice.size() * sizeof(float);
    visit(slice.begin * sizeof(float), begin, bytes);
    begin += bytes;
  }
}

void Optimizer::read(DeviceView kept, DeviceView whole) const {
  std::vector<std::byte> slice;
  for_each_kept([&](std::size_t place, std::size_t place_in_kept, std::size_t bytes) {
    slice.resize(bytes);
    updates_on_->download(kept.slice(place_in_kept, bytes), slice);
    device_.upload(slice, whole.slice(place, bytes));
  });
}

void Optimizer::write(DeviceView kept, std::size_t begin, std::span<const std::byte> piece) {
  for_each_kept([&](std::size_t place, std::size_t place_in_kept, std::size_t bytes) {
    const std::size_t from = std::max(place, begin), end = std::min(place + bytes, begin + piece.size());
    if (from < end)
      updates_on_->upload(piece.subspan(from - begin, end - from),
                          kept.slice(place_in_kept + from - place, end - from));
  });
}

void Optimizer::update(const Range& slice) {
  if (whole_parameters_ && !sharded() && !shares_matrices_)
    update_whole(slice);
  else
    rule_->run(slice, rate_, step_);
}

void Optimizer::begin_average() {
  if (!average()) return;
  std::vector<std::byte> weights(parameters_.gradients().bytes);
  device_.download(parameters_.weights().slice(0, weights.size()), weights);
  write(average(), 0, weights);
}

void Optimizer::update_whole(const Range& slice) {
  const auto& all = segments_;
  Range complete{slice.begin, slice.begin};
  for (auto p = std::ranges::upper_bound(all, slice.begin, {}, [](const auto& s) { return s.range.end; });
       p != all.end(); ++p) {
    const Range& range = p->range;
    if (range.begin >= slice.end) break;
    std::size_t& arrived = arrived_[static_cast<std::size_t>(p - all.begin())];
    arrived += std::min(range.end, slice.end) - std::max(range.begin, slice.begin);
    if (arrived < range.size()) continue;
    arrived = 0;
    if (complete.end != range.begin) {
      update_complete(complete);
      complete.begin = range.begin;
    }
    complete.end = range.end;
  }
  update_complete(complete);
}

void Optimizer::update_complete(const Range& parameters) {
  if (parameters.size() == 0) return;
  rule_->measure_parameters(parameters);
  rule_->run(parameters, rate_, step_);
}

}  // namespace annulus
