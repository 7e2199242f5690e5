#include <filesystem>
#include <memory>
#include <vector>

#include "src/apply/checkpoint_tools.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"

namespace annulus {
namespace {

constexpr const char* kPlaceHelp = "A checkpoint's file, or the folder of a run, of which the newest is taken";

void add_show(CLI::App& parent, Command& chosen) {
  struct Options {
    std::filesystem::path place, json;
    bool overwrite = false;
  };
  auto* command = parent.add_subcommand("show", "What a checkpoint is, and the norms of what is in it");
  auto options = std::make_shared<Options>();
  command->add_option("checkpoint", options->place, kPlaceHelp)->required();
  command->add_option("--json", options->json, "Write it to this file as well");
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::checkpoint_description}}, {options->place},
                         options->overwrite);
      if (world.root()) show_checkpoint(options->place, options->json);
      return 0;
    };
  });
}

void add_diff(CLI::App& parent, Command& chosen) {
  auto* command = parent.add_subcommand(
      "diff", "Which tensors of two checkpoints differ, and how far; exits with 1 where some do, 0 where none does");
  auto places = std::make_shared<std::vector<std::filesystem::path>>();
  command->add_option("checkpoints", *places, kPlaceHelp)->required()->expected(2);
  command->callback([&chosen, places] {
    chosen.run = [places](const World& world, Watchdog&) {
      return world.root() && compare_checkpoints(places->front(), places->back()) ? 1 : 0;
    };
  });
}

void add_average(CLI::App& parent, Command& chosen) {
  struct Options {
    std::filesystem::path file;
    std::vector<std::filesystem::path> places;
    bool overwrite = false;
  };
  auto* command = parent.add_subcommand(
      "average", "Make the mean of several checkpoints' weights, to be evaluated; no run can go on from it");
  auto options = std::make_shared<Options>();
  command->add_option("out", options->file, "The file to write")->required();
  command->add_option("checkpoints", options->places, kPlaceHelp)->required()->expected(2, 1 << 20);
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      if (world.root()) average_checkpoints(options->file, options->places, options->overwrite);
      return 0;
    };
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("checkpoint", "Look at checkpoints, compare them, average them");
  command->require_subcommand(1);
  add_show(*command, chosen);
  add_diff(*command, chosen);
  add_average(*command, chosen);
}

}  // namespace annulus
