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
#include "kernels/device.h"
#include "models/network/model.h"

namespace annulus {
namespace {

struct Named {
  std::string_view name;
  Fault::Kind kind;
};
constexpr std::array kKinds = {Named{"kill", Fault::Kind::kill}, Named{"delay", Fault::Kind::delay},
                               Named{"hang", Fault::Kind::hang}, Named{"flip", Fault::Kind::flip},
                               Named{"wrong", Fault::Kind::wrong}};

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

// Returns whether the key belongs to a flip.
bool set_flip(Fault& fault, std::string_view key, std::string_view value) {
  constexpr std::array<std::string_view, 4> kArrays = {"weights", "state", "average", "bucket"};
  if (key == "in" && std::ranges::find(kArrays, value) == kArrays.end())
    fail("unknown array '{}' (weights, state, average or bucket)", value);
  if (key == "in")
    fault.in = value;
  else if (key == "bucket")
    fault.bucket = parse<std::size_t>(value);
  else if (key == "element")
    fault.element = parse<std::size_t>(value);
  else if (key == "bit")
    fault.bit = parse<int>(value);
  else if (key == "times")
    fault.times = parse<std::size_t>(value);
  else
    return false;
  if (fault.bit < 0 || fault.bit > 31) fail("a float has bits 0 to 31");
  return true;
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
  else if (fault.kind != Fault::Kind::flip || !set_flip(fault, key, value))
    fail("unknown key '{}'", key);
}

Fault parse_parts(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto* kind = std::ranges::find(kKinds, text.substr(0, colon), &Named::name);
  if (kind == kKinds.end()) fail("must begin with kill:, delay:, hang:, flip: or wrong:");
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

// `first`: the default element.
void flip(Device& device, DeviceView array, const Fault& fault, std::size_t first) {
  if (!array) fail("there is no {} in which a bit could flip", fault.in);
  const std::size_t element = fault.element.value_or(first);
  if (element >= array.bytes / sizeof(float)) fail("{} has no element {}", fault.in, element);
  const DeviceView value = array.slice(element * sizeof(float), sizeof(float));
  std::uint32_t bits = 0;
  device.download(value, std::as_writable_bytes(std::span(&bits, 1)));
  bits ^= std::uint32_t{1} << fault.bit;
  device.upload(std::as_bytes(std::span(&bits, 1)), value);
  device.finish();  // work beside the lane sees it, too
}

void end_silently() {
  std::raise(SIGKILL);
}

void pass(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Returns where the first weight is in the arenas.
std::size_t first_weight(const Model& model) {
  return std::ranges::find(model.parameters().all(), Role::weight, &Parameter::role)->offset;
}

void flip(const FaultTargets& targets, const Fault& fault) {
  const Parameters& parameters = targets.model.parameters();
  const DeviceView array = fault.in == "weights" ? parameters.weights()
                           : fault.in == "state" ? targets.state
                                                 : targets.average;
  flip(targets.model.device(), array, fault, first_weight(targets.model) / sizeof(float));
  targets.model.parameters().weights_changed();
}

void happen(Fault& fault, const FaultTargets& targets) {
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
      if (fault.in != "bucket" && fault.times > 0) {
        --fault.times;
        flip(targets, fault);
      }
      return;
    case Fault::Kind::wrong:
      return;
  }
}

}  // namespace

Fault parse_fault(const std::string& text) try { return parse_parts(text); } catch (const Error& error) {
  fail("{}: {}; for example delay:rank=1,step=5,seconds=2", text, error.what());
}

void inject(std::vector<Fault>& faults, int rank, std::uint64_t step, const FaultTargets& targets) {
  for (Fault& fault : faults)
    if (fault.rank == rank && fault.step.value_or(step) == step && fault.at.empty()) happen(fault, targets);
}

void inject_into(const Range& computed, const std::vector<Fault>& faults, int rank, std::uint64_t step, Model& model) {
  const std::size_t element = first_weight(model) / sizeof(float);
  if (element < computed.begin || element >= computed.end) return;
  for (const Fault& fault : faults)
    if (fault.kind == Fault::Kind::wrong && fault.rank == rank && step >= *fault.step)
      flip(model.device(), model.parameters().gradients(), fault, element);
}

void inject_into(DeviceView sum, std::size_t bucket, std::vector<Fault>& faults, int rank, std::uint64_t step,
                 Device& device) {
  for (Fault& fault : faults)
    if (fault.rank == rank && fault.step == step && fault.in == "bucket" && fault.bucket == bucket && fault.times > 0) {
      --fault.times;
      flip(device, sum, fault, 0);
    }
}

void inject_at(const std::vector<Fault>& faults, int rank, std::uint64_t step, std::string_view at) {
  for (const Fault& fault : faults)
    if (fault.rank == rank && fault.step == step && fault.at == at)
      fault.kind == Fault::Kind::kill ? end_silently() : pass(fault.seconds);
}

}  // namespace annulus
