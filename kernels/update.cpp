#include "kernels/update.h"

#include <algorithm>

namespace annulus {

std::string_view optimizer_name(const UpdateRule& rule) {
  constexpr std::array<std::string_view, std::variant_size_v<UpdateRule>> kNames{"sgd", "lars", "adamw"};
  return kNames[rule.index()];
}

std::size_t states(const UpdateRule& rule) {
  return std::holds_alternative<AdamW>(rule) ? 2 : 1;
}

bool needs_whole_parameters(const UpdateRule& rule) {
  return std::holds_alternative<Lars>(rule);
}

float momentum(const UpdateRule& rule) {
  if (const auto* adamw = std::get_if<AdamW>(&rule)) return adamw->beta1;
  if (const auto* lars = std::get_if<Lars>(&rule)) return lars->momentum;
  return std::get<Sgd>(rule).momentum;
}

float weight_decay(const UpdateRule& rule, const UpdateSegment& segment) {
  const float of_weights = std::visit([](const auto& one) { return one.weight_decay; }, rule);
  return segment.factors.weight_decay.value_or(segment.role == Role::weight ? of_weights : 0);
}

std::vector<Range> kept_parts(const UpdateArenas& arenas, const Range& segment) {
  if (arenas.kept.empty()) return {segment};
  std::vector<Range> parts;
  for (const Range& kept : arenas.kept) {
    const Range part{std::max(kept.begin, segment.begin), std::min(kept.end, segment.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

KeptPlaces::KeptPlaces(const std::vector<Range>& kept) : kept_(kept) {
  for (std::size_t place = 0; const Range& slice : kept_) {
    places_.push_back(place);
    place += slice.size();
  }
}

std::size_t KeptPlaces::of(std::size_t position) const {
  if (kept_.empty()) return position;
  const auto next = std::ranges::upper_bound(kept_, position, {}, &Range::end);
  return places_[static_cast<std::size_t>(next - kept_.begin())] + position - next->begin;
}

GradientNorms& GradientNorms::operator+=(const GradientNorms& later) {
  if (later.steps == 0) return *this;
  sum += later.sum;
  largest = std::max(largest, later.largest);
  last = later.last;
  steps += later.steps;
  return *this;
}

}  // namespace annulus
