#include <filesystem>
#include <memory>
#include <vector>

#include "src/apply/checkpoint_tools.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"

namespace annulus {
namespace {

constexpr const char* kPlaceHelp = "Checkpoint file, or a run's folder (its newest checkpoint)";

void add_show(CLI::App& parent, Command& chosen) {
  struct Options {
    std::filesystem::path place, json;
    bool overwrite = false;
  };
  auto* command = parent.add_subcommand("show", "Show a checkpoint: attributes, tensors, shapes and norms");
  auto options = std::make_shared<Options>();
  command->add_option("CHECKPOINT", options->place, kPlaceHelp)->required();
  add_json_option(*command, chosen, options->json, "JSON file to write the description to");
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run_without_mpi = [options] {
      expect_replaceable({options->json, FileKind::checkpoint_description}, {options->place}, options->overwrite);
      show_checkpoint(options->place, options->json);
      return 0;
    };
  });
}

void add_diff(CLI::App& parent, Command& chosen) {
  auto* command = parent.add_subcommand(
      "diff", "Compare the tensors of two checkpoints; exit status 1 if any differ, 0 if none do");
  auto places = std::make_shared<std::vector<std::filesystem::path>>();
  command->add_option("CHECKPOINT", *places, kPlaceHelp)->required()->expected(2);
  command->callback([&chosen, places] {
    chosen.run_without_mpi = [places] { return compare_checkpoints(places->front(), places->back()) ? 1 : 0; };
  });
}

void add_average(CLI::App& parent, Command& chosen) {
  struct Options {
    std::filesystem::path file;
    std::vector<std::filesystem::path> places;
    bool overwrite = false;
  };
  auto* command = parent.add_subcommand(
      "average", "Average the weights of several checkpoints for evaluation; the result cannot be resumed");
  auto options = std::make_shared<Options>();
  command->add_option("OUT", options->file, "File to write")->required();
  command->add_option("CHECKPOINT", options->places, kPlaceHelp)->required()->expected(2, 1 << 20);
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run_without_mpi = [options] {
      average_checkpoints(options->file, options->places, options->overwrite);
      return 0;
    };
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("checkpoint", "Show, compare or average checkpoints");
  command->require_subcommand(0, 1);
  add_show(*command, chosen);
  add_diff(*command, chosen);
  add_average(*command, chosen);
}

}  // namespace annulus
