#include "src/apply/doctor.h"

#include "src/cli/commands.h"

namespace annulus {

void add_doctor(CLI::App& app, Command& chosen) {
  app.add_subcommand("doctor", "Show versions, devices, all-reduces and links, and what is unavailable")
      ->callback([&chosen] {
        chosen.accepts_foreign_launchers = true;
        chosen.run = [](const World& world, Watchdog&) {
          doctor(world);
          return 0;
        };
      });
}

}  // namespace annulus
