#include "src/apply/doctor.h"

#include "src/cli/commands.h"

namespace annulus {

void add_doctor(CLI::App& app, Command& chosen) {
  app.add_subcommand("doctor", "Versions, devices and links: what can be used here, and why not the rest")
      ->callback([&chosen] {
        chosen.run = [](const World& world, Watchdog&) {
          doctor(world);
          return 0;
        };
      });
}

}  // namespace annulus
