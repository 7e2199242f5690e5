#include "src/cli/option_kinds.h"

#include "kernels/base/error.h"

namespace annulus {

CLI::Option* add_interval_option(CLI::App& command, const std::string& name, Interval& interval,
                                 const std::string& help,
                                 const std::function<Interval(const std::string&)>& parse_text) {
  const auto parse = [&interval, name, parse_text](const std::string& text) {
    try {
      interval = parse_text(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return command.add_option_function<std::string>(name, parse, help)->type_name("WHEN")->default_str("1epoch");
}

}  // namespace annulus
