#include "collectives/call.h"

#include <fmt/format.h>

#include <array>

namespace annulus {

std::string_view name_of(Call::Kind kind) {
  constexpr std::array kNames = {"barrier", "all-reduce", "reduce-scatter", "all-gather", "broadcast"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string to_string(const Call& call) {
  const std::string_view name = name_of(call.kind);
  if (call.kind == Call::Kind::barrier) return std::string(name);
  std::string text = fmt::format("{} of {} {}", name, call.count, to_string(call.reduction.type));
  if (call.kind == Call::Kind::broadcast) return fmt::format("{} from rank {}", text, call.root);
  if (call.kind != Call::Kind::all_reduce) text += " per rank";
  if (call.kind != Call::Kind::all_gather) text += fmt::format(" ({})", to_string(call.reduction.operation));
  return text;
}

}  // namespace annulus
