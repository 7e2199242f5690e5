#include "kernels/update.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace annulus {

std::string_view optimizer_name(const UpdateRule& rule) {
  constexpr std::array<std::string_view, std::variant_size_v<UpdateRule>> kNames{"sgd", "lars", "adamw", "muon"};
  return kNames[rule.index()];
}

std::size_t states(const UpdateRule& rule) {
  return std::holds_alternative<AdamW>(rule) || std::holds_alternative<Muon>(rule) ? 2 : 1;
}

bool needs_whole_parameters(const UpdateRule& rule) {
  return std::holds_alternative<Lars>(rule) || std::holds_alternative<Muon>(rule);
}

float momentum(const UpdateRule& rule) {
  if (const auto* adamw = std::get_if<AdamW>(&rule)) return adamw->beta1;
  if (const auto* lars = std::get_if<Lars>(&rule)) return lars->momentum;
  if (const auto* muon = std::get_if<Muon>(&rule)) return muon->momentum;
  return std::get<Sgd>(rule).momentum;
}

std::vector<OrthogonalizingStep> orthogonalizing_steps(const Muon& rule) {
  if (rule.iteration == Muon::Iteration::newton_schulz) return {rule.steps, {3.4445f, -4.7750f, 2.0315f}};
  // The paper's algorithm 1, for singular values from 0.001 of the norm on, with the safety factor 1.01.
  constexpr double kSafety = 1.01;
  constexpr std::array<std::array<double, 3>, 7> kSteps{
      {{8.28721201814563, -23.595886519098837, 17.300387312530933},
       {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
       {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
       {3.3184196573706015, -2.488488024314874, 0.51004894012372},
       {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
       {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
       {1.8750014808534479, -1.2500016453999487, 0.3750001645474248}}};
  std::vector<OrthogonalizingStep> steps(rule.steps, {1.875f, -1.25f, 0.375f});
  for (std::size_t i = 0; i < std::min(steps.size(), kSteps.size()); ++i)
    steps[i] = {static_cast<float>(kSteps[i][0] / kSafety),
                static_cast<float>(kSteps[i][1] / (kSafety * kSafety * kSafety)),
                static_cast<float>(kSteps[i][2] / (kSafety * kSafety * kSafety * kSafety * kSafety))};
  return steps;
}

MatrixSize matrix_size(const Shape& tensor) {
  if (tensor.size() < 2) fail("a tensor of {} is no matrix", to_string(tensor));
  const std::size_t all = elements(tensor), rows = tensor.front();
  return {rows, rows == 0 ? 0 : all / rows};
}

float orthogonal_scale(const Muon& rule, const MatrixSize& size) {
  const auto rows = static_cast<float>(size.rows), columns = static_cast<float>(size.columns);
  return rule.matches_adamw ? 0.2f * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0f, rows / columns));
}

float Averaging::share(std::uint64_t step) const {
  const auto t = static_cast<double>(step);
  if (!looks_ahead()) return static_cast<float>(1 - std::min(decay, (1 + t) / (10 + t)));
  return static_cast<float>(1 - decay * std::pow(std::min(t / static_cast<double>(steps), 1.0), 3));
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
