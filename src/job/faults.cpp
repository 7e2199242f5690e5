#include "src/job/faults.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <string_view>
#include <thread>

#include "kernels/base/error.h"
#include "models/network/model.h"

namespace annulus {
namespace {

struct Named {
  std::string_view name;
  Fault::Kind kind;
};
constexpr std::array kKinds = {Named{"kill", Fault::Kind::kill}, Named{"delay", Fault::Kind::delay},
                               Named{"hang", Fault::Kind::hang}, Named{"flip", Fault::Kind::flip}};

constexpr std::uint32_t kFlipped = 1 << 20;  // a mantissa bit that survives rounding

template <class T>
T parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) fail("'{}' is not a valid number", text);
  return value;
}

std::string parse_place(std::string_view text) {
  constexpr std::array<std::string_view, 6> kPlaces = {"written",  "renamed", "linked",
                                                       "compared", "claimed", "planned"};
  if (std::ranges::find(kPlaces, text) == kPlaces.end())
    fail("unknown stage '{}' ({})", text, fmt::join(kPlaces, ", "));
  return std::string(text);
}

void set(Fault& fault, std::string_view key, std::string_view value) {
  if (key == "rank")
    fault.rank = parse<int>(value);
  else if (key == "step")
    fault.step = parse<std::uint64_t>(value);
  else if (key == "seconds" && fault.kind == Fault::Kind::delay)
    fault.seconds = parse<double>(value);
  else if (key == "at" && (fault.kind == Fault::Kind::kill || fault.kind == Fault::Kind::delay))
    fault.at = parse_place(value);
  else
    fail("unknown key '{}'", key);
}

Fault parse_parts(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto* kind = std::ranges::find(kKinds, text.substr(0, colon), &Named::name);
  if (kind == kKinds.end()) fail("must begin with kill:, delay:, hang: or flip:");
  Fault fault{kind->kind, -1, std::nullopt};
  for (std::size_t begin = colon + 1; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    if (equals == part.npos) fail("'{}' has no value", part);
    set(fault, part.substr(0, equals), part.substr(equals + 1));
    begin = end + 1;
  }
  if (fault.rank < 0) fail("needs rank=N");
  if (fault.kind == Fault::Kind::delay && !(fault.seconds > 0)) fail("needs seconds=S");
  if (fault.kind != Fault::Kind::delay && !fault.step) fail("needs step=N");
  return fault;
}

void flip_a_bit(Model& model) {
  const auto& all = model.parameters().all();
  const auto weight = std::ranges::find(all, Role::weight, &Parameter::role);
  const DeviceView view = model.parameters().weight(*weight).slice(0, sizeof kFlipped);
  std::uint32_t bits = 0;
  model.device().download(view, std::as_writable_bytes(std::span(&bits, 1)));
  bits ^= kFlipped;
  model.device().upload(std::as_bytes(std::span(&bits, 1)), view);
  model.parameters().weights_changed();
}

void end_silently() {
  std::raise(SIGKILL);
}

void pass(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void happen(const Fault& fault, Model& model) {
  switch (fault.kind) {
    case Fault::Kind::kill:
      end_silently();
      return;
    case Fault::Kind::delay:
      pass(fault.seconds);
      return;
    case Fault::Kind::hang:
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    case Fault::Kind::flip:
      flip_a_bit(model);
      return;
  }
}

}  // namespace

Fault parse_fault(const std::string& text) try { return parse_parts(text); } catch (const Error& error) {
  fail("{}: {}; for example delay:rank=1,step=5,seconds=2", text, error.what());
}

void inject(const std::vector<Fault>& faults, int rank, std::uint64_t step, Model& model) {
  for (const Fault& fault : faults)
    if (fault.rank == rank && fault.step.value_or(step) == step && fault.at.empty()) happen(fault, model);
}

void inject_at(const std::vector<Fault>& faults, int rank, std::uint64_t step, std::string_view at) {
  for (const Fault& fault : faults)
    if (fault.rank == rank && fault.step == step && fault.at == at)
      fault.kind == Fault::Kind::kill ? end_silently() : pass(fault.seconds);
}

}  // namespace annulus
