#include "src/job/consistency.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/subnormals.h"

namespace annulus {

void add_configuration(Agreement& agreement, const std::string& toml) {
  constexpr std::array<std::string_view, 9> kOfTheMachine = {"data",    "from", "json",       "out",    "prefetch",
                                                             "threads", "tune", "validation", "workers"};
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find('='));
    if (std::ranges::find(kOfTheMachine, name) == kOfTheMachine.end())
      agreement.add("--" + name, line.substr(std::min(line.size(), name.size() + 1)));
  }
}

void check_same_command(const World& world, const std::string& command) {
  Agreement agreement(world);
  agreement.add("the program's version", ANNULUS_VERSION);
  agreement.add("the command", command);
  agreement.add("the treatment of subnormal numbers", flushes_subnormals() ? "flush to zero" : "keep");
  agreement.check();
}

void check_configuration(const World& world, const std::string& configuration) {
  Agreement agreement(world);
  add_configuration(agreement, configuration);
  agreement.check();
}

void check_same_network(const World& world, const Model& model) {
  std::string layouts;
  for (const Parameter& p : model.parameters().all())
    layouts += fmt::format("{} {} {} {} at {}\n", p.name, to_string(p.spec.shape), static_cast<int>(p.spec.type),
                           p.spec.layout ? p.spec.layout->name() : "", p.offset);
  Agreement agreement(world);
  agreement.add("the network", model.graph().description());
  agreement.add("the memory layout of parameters (the same on processors of one type)", layouts);
  agreement.check();
}

}  // namespace annulus
