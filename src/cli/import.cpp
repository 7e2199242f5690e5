#include "src/import/import.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <memory>

#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/import/source.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

constexpr std::size_t kMostShards = 1000;

// "224x224", rows first.
ImageSize parse_size(const std::string& text) {
  const char* const end = text.data() + text.size();
  ImageSize size;
  const auto [cross, bad_height] = std::from_chars(text.data(), end, size.height);
  if (bad_height == std::errc() && cross != end && *cross == 'x') {
    const auto [rest, bad_width] = std::from_chars(cross + 1, end, size.width);
    if (bad_width == std::errc() && rest == end && size.height > 0 && size.width > 0) return size;
  }
  throw CLI::ValidationError("--size", "give height x width, such as 256x256");
}

std::vector<std::string> read_names(const std::string& file) {
  std::ifstream stream(file);
  std::vector<std::string> names;
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty())
      throw CLI::ValidationError("--classes-from", fmt::format("{}: line {} is empty", file, names.size() + 1));
    names.push_back(line);
  }
  if (!stream.eof() || names.empty())
    throw CLI::ValidationError("--classes-from", fmt::format("{}: cannot read a name a line from this file", file));
  return names;
}

std::string formats_help() {
  std::string text = "Its format:";
  for (const SourceFormat* format : source_formats())
    text += fmt::format("\n{:<7}{}", format->name, format->description);
  return text;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const SourceFormat* format : source_formats()) names.push_back(format->name);
  return names;
}

void add_source_options(CLI::App& command, ImportOptions& o) {
  command.add_option("file", o.output, "The HDF5 file to make")->required();
  command.add_option("source", o.source, "Folder of the data set")->required();
  command.add_option("--from", o.format, formats_help())->check(CLI::IsMember(format_names()))->capture_default_str();
  auto* classes = command.add_option("--classes", o.classes,
                                     "Names of the classes by label, separated by commas; by default the source's");
  classes->delimiter(',');
  command
      .add_option_function<std::string>(
          "--classes-from", [&o](const std::string& file) { o.classes = read_names(file); },
          "A text file of these names, one a line, such as scripts/fashion-mnist.txt")
      ->type_name("FILE")
      ->excludes(classes);
  command
      .add_option("--on-bad-sample", o.on_bad_sample,
                  "What to do with damaged, empty or unreadable images, and labels without a class: fail, or skip, "
                  "which lists them in FILE.skipped.txt; usual: skip where images are encoded")
      ->check(CLI::IsMember({"fail", "skip", "usual"}))
      ->capture_default_str();
}

void add_storage_options(CLI::App& command, ImportOptions& o) {
  command
      .add_option("--store", o.store, "encoded: JPEG and PNG as they came; pixels: decoded; usual: as in the source")
      ->check(CLI::IsMember({"encoded", "pixels", "usual"}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--size", [&o](const std::string& text) { o.size = parse_size(text); },
          "Height x width of stored pixels, such as 256x256: images are made as small as covers it, and their middle "
          "is "
          "kept")
      ->type_name("HxW");
  command
      .add_option("--channels", o.channels, "What encoded images are decoded to: 1, gray, or 3, colour; by default 3")
      ->transform(CLI::IsMember({"1", "3"}));
  command
      .add_option("--mean", o.mean, "Of each channel, pixels scaled to 0..1; by default that of the training images")
      ->transform(any_number())
      ->delimiter(',');
  command.add_option("--deviation", o.deviation, "The same")->transform(number_above(0))->delimiter(',');
  command
      .add_option(
          "--chunk", o.chunk,
          "Store images in chunks of so many, each with a checksum, so that damage is found, which takes longer "
          "to read; of encoded ones as many bytes as these have on the average. 0: contiguous, without")
      ->transform(whole_number(0))
      ->capture_default_str();
  command.add_option("--shards", o.shards, "Files to make, FILE-00000-of-00008 and so on")
      ->transform(whole_number(1, kMostShards))
      ->capture_default_str();
}

}  // namespace

void add_import(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("import",
                                     "Make a data file from a data set in another format. Under mpirun all ranks "
                                     "decode; interrupted, the same command "
                                     "goes on. Takes twice the data's space on the disk.");
  auto options = std::make_shared<ImportOptions>();
  add_source_options(*command, *options);
  add_storage_options(*command, *options);
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      expect_whole_world(world);
      return import_data(world, *options, [](const std::string& lines) { fmt::print("{}\n", printable_lines(lines)); });
    };
  });
}

}  // namespace annulus
