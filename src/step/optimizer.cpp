#include "src/step/optimizer.h"

#include <algorithm>

namespace annulus {
namespace {

std::vector<UpdateSegment> segments_of(const Parameters& parameters, const Optimizer::FactorsOf& factors_of) {
  std::vector<UpdateSegment> all;
  for (const Parameter& p : parameters.updated())
    all.push_back({{p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)},
                   p.role,
                   factors_of(p.name),
                   p.statistic_momentum});
  return all;
}

// The parts of the segments in a slice, relative to it.
std::vector<UpdateSegment> cut(std::vector<UpdateSegment> segments, const Range& slice) {
  for (UpdateSegment& segment : segments) {
    const auto within = [&](std::size_t place) { return std::clamp(place, slice.begin, slice.end) - slice.begin; };
    segment.range = {within(segment.range.begin), within(segment.range.end)};
  }
  std::erase_if(segments, [](const UpdateSegment& segment) { return segment.range.size() == 0; });
  return segments;
}

DeviceView cut(DeviceView arena, const Range& slice) {
  return arena.slice(slice.begin * sizeof(float), slice.size() * sizeof(float));
}

std::vector<Buffer> allocate_states(Device& device, std::size_t count, std::size_t bytes) {
  std::vector<Buffer> states;
  for (std::size_t i = 0; i < count; ++i) states.push_back(device.allocate(bytes));
  return states;
}

}  // namespace

Optimizer::Optimizer(Device& device, Parameters& parameters, const UpdateRule& rule, float rate, double average_decay,
                     const FactorsOf& factors_of)
    : device_(device),
      parameters_(parameters),
      kind_(rule),
      name_(optimizer_name(rule)),
      rate_(rate),
      next_rate_(rate),
      whole_parameters_(needs_whole_parameters(rule)),
      segments_(segments_of(parameters, factors_of)),
      states_(allocate_states(device, annulus::states(rule), parameters.gradients().bytes)),
      average_(average_decay > 0 ? device.allocate(parameters.weights().bytes) : Buffer{}),
      kept_{{0, parameters.gradients().bytes / sizeof(float)}},
      arrived_(segments_.size()) {
  UpdateArenas arenas{parameters.weights(), parameters.gradients(), parameters.copies(), {},
                      average_.view(),      average_decay};
  for (std::size_t i = 0; i < states(); ++i) arenas.states[i] = state(i);
  rule_ = device.plan(rule, arenas, segments_);
}

void Optimizer::keep(const std::vector<Range>& slices) {
  const DeviceView weights = parameters_.weights(), gradients = parameters_.gradients();
  kept_ = slices;
  std::size_t size = 0;
  for (const Range& slice : slices) size += slice.size();
  const std::size_t count = states();
  states_.clear();
  states_ = allocate_states(device_, count, size * sizeof(float));
  rule_ = device_.plan(kind_, {weights, gradients, {}, {}}, segments_);
  sharded_rules_.clear();
  for_each_kept([&](const Range& slice, const Range& place) {
    UpdateArenas arenas{cut(weights, slice), cut(gradients, slice), {}, {}};
    for (std::size_t i = 0; i < count; ++i) arenas.states[i] = cut(state(i), place);
    sharded_rules_.push_back(device_.plan(kind_, arenas, cut(segments_, slice)));
  });
}

template <class Visit>
void Optimizer::for_each_kept(Visit visit) const {
  std::size_t begin = 0;
  for (const Range& slice : kept_) {
    visit(slice, Range{begin, begin + slice.size()});
    begin += slice.size();
  }
}

void Optimizer::read_state(std::size_t number, std::span<std::byte> arena) const {
  for_each_kept([&](const Range& slice, const Range& place) {
    device_.download(cut(state(number), place),
                     arena.subspan(slice.begin * sizeof(float), slice.size() * sizeof(float)));
  });
}

void Optimizer::write_state(std::size_t number, std::span<const std::byte> arena) {
  for_each_kept([&](const Range& slice, const Range& place) {
    device_.upload(arena.subspan(slice.begin * sizeof(float), slice.size() * sizeof(float)), cut(state(number), place));
  });
}

double Optimizer::kept_squares() {
  for (const Range& slice : kept_) rule_->add_squares(slice);
  return rule_->take_squares();
}

void Optimizer::update(const Range& slice) {
  if (whole_parameters_)
    update_whole(slice);
  else
    run(slice);
}

void Optimizer::run(const Range& slice) {
  if (!sharded()) return rule_->run(slice, rate_, step_);
  const auto number = std::ranges::find(kept_, slice) - kept_.begin();
  sharded_rules_.at(static_cast<std::size_t>(number))->run({0, slice.size()}, rate_, step_);
}

void Optimizer::swap_average() {
  if (!average()) return;
  rule_->swap_average();
  parameters_.weights_changed();
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
      if (complete.size() > 0) run(complete);
      complete.begin = range.begin;
    }
    complete.end = range.end;
  }
  if (complete.size() > 0) run(complete);
}

}  // namespace annulus
