#include "src/step/optimizer.h"

#include <algorithm>
#include <iterator>

namespace annulus {
namespace {

Range floats_of(const Parameter& p) {
  return {p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)};
}

std::vector<Range> ranges(const Parameters& parameters) {
  std::vector<Range> all;
  std::ranges::transform(parameters.updated(), std::back_inserter(all), floats_of);
  return all;
}

std::vector<Buffer> allocate_states(Device& device, std::size_t count, std::size_t bytes) {
  std::vector<Buffer> states;
  for (std::size_t i = 0; i < count; ++i) states.push_back(device.allocate(bytes));
  return states;
}

std::unique_ptr<Update> plan(Device& device, const Parameters& parameters, const UpdateRule& rule,
                             const std::vector<Buffer>& states, const Buffer& average, double average_decay,
                             const Optimizer::FactorsOf& factors_of) {
  UpdateArenas arenas{parameters.weights(), parameters.gradients(), parameters.copies(), {},
                      average.view(),       average_decay};
  for (std::size_t i = 0; i < states.size(); ++i) arenas.states[i] = states[i].view();
  std::vector<UpdateSegment> segments;
  for (const Parameter& p : parameters.updated())
    segments.push_back({floats_of(p), p.role, factors_of(p.name), p.statistic_momentum});
  return device.plan(rule, arenas, segments);
}

}  // namespace

Optimizer::Optimizer(Device& device, Parameters& parameters, const UpdateRule& rule, float rate, double average_decay,
                     const FactorsOf& factors_of)
    : parameters_(parameters),
      name_(optimizer_name(rule)),
      rate_(rate),
      next_rate_(rate),
      whole_parameters_(needs_whole_parameters(rule)),
      parameter_ranges_(ranges(parameters)),
      states_(allocate_states(device, annulus::states(rule), parameters.gradients().bytes)),
      average_(average_decay > 0 ? device.allocate(parameters.weights().bytes) : Buffer{}),
      rule_(plan(device, parameters, rule, states_, average_, average_decay, factors_of)),
      arrived_(parameter_ranges_.size()) {}

void Optimizer::update(const Range& slice) {
  if (whole_parameters_)
    update_whole(slice);
  else
    run(slice);
}

void Optimizer::run(const Range& slice) {
  rule_->run(slice, rate_, step_);
}

void Optimizer::swap_average() {
  if (!average()) return;
  rule_->swap_average();
  parameters_.weights_changed();
}

void Optimizer::update_whole(const Range& slice) {
  const auto& all = parameter_ranges_;
  Range complete{slice.begin, slice.begin};
  for (auto p = std::ranges::upper_bound(all, slice.begin, {}, &Range::end); p != all.end(); ++p) {
    const Range& range = *p;
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
