#include "src/job/instruction_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/instruction_set.h"
#include "src/job/machine.h"

namespace annulus {

std::string agree_on_instruction_set(const World& world, const std::string& wanted) {
  const std::vector<std::uint64_t> widest = world.gather(static_cast<std::uint64_t>(widest_instruction_set()));
  const auto [narrowest, most] = std::ranges::minmax_element(widest);
  const auto common = static_cast<InstructionSet>(*narrowest);
  const std::vector<std::string> hosts = world.gather_texts(host_name());
  const InstructionSet chosen = parse_instruction_set(wanted).value_or(common);
  const std::string lacking = hosts.empty() ? "" : hosts.at(static_cast<std::size_t>(narrowest - widest.begin()));
  if (chosen > common)
    fail("--instruction-set {}: the processor of rank {}{} has only {}: give auto or {}", wanted,
         narrowest - widest.begin(), lacking.empty() ? "" : " on " + lacking, to_string(common), to_string(common));
  if (wanted != "auto" || *narrowest != *most) limit_instruction_set(chosen);
  if (!world.root() || wanted != "auto" || *narrowest == *most) return "";
  return fmt::format(
      "ranks have different processors: all compute with {}, as rank {} on {} has no wider instruction set",
      to_string(common), narrowest - widest.begin(), lacking);
}

}  // namespace annulus
