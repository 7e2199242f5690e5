#include "src/import/import.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <memory>

#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/import/source.h"
#include "src/io/printable.h"
#include "src/io/standard_output.h"

namespace annulus {
namespace {

constexpr std::size_t kMostShards = 1000;

// Parses "224x224", rows first.
ImageSize parse_size(const std::string& text) {
  const char* const end = text.data() + text.size();
  ImageSize size;
  const auto [cross, bad_height] = std::from_chars(text.data(), end, size.height);
  if (bad_height == std::errc() && cross != end && *cross == 'x') {
    const auto [rest, bad_width] = std::from_chars(cross + 1, end, size.width);
    if (bad_width == std::errc() && rest == end && size.height > 0 && size.width > 0) return size;
  }
  throw CLI::ValidationError("--size", unexpected("height x width, such as 256x256", text));
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
    throw CLI::ValidationError("--classes-from", fmt::format("{}: cannot read one name per line from this file", file));
  return names;
}

std::string formats_help() {
  std::string text = "Format of the source:\nauto    by the names of its files";
  for (const SourceFormat* format : source_formats())
    text += fmt::format("\n{:<6}  {}", format->name, format->description);
  return text;
}

// Returns a validator for formats, which names the script for formats that once were here.
CLI::Validator format() {
  std::vector<std::string> names{"auto"};
  for (const SourceFormat* format : source_formats()) names.push_back(format->name);
  CLI::Validator known = one_of(names);
  const auto check = [known](std::string& text) {
    for (const char* array : {"idx", "cifar", "npy", "parquet", "hdf5"})
      if (text == array) return fmt::format("{} is read by scripts/import-arrays FILE SOURCE --from {}", text, text);
    return known(text);
  };
  return {check, ""};
}

void add_source_options(CLI::App& command, ImportOptions& o) {
  command.add_option("FILE", o.output, "HDF5 file to write")->required();
  const auto take_sources = [&o](const std::vector<std::string>& sources) {
    o.source = sources.front();
    o.more_sources.assign(sources.begin() + 1, sources.end());
  };
  command
      .add_option_function<std::vector<std::string>>(
          "SOURCE", take_sources, "Folder of the data set, or an archive; --from text takes files and folders")
      ->required();
  command.add_option("--from", o.format, formats_help())->check(format())->capture_default_str();
  command
      .add_option(
          "--tokenizer", o.tokenizer,
          "Tokens of --from text: bytes (default), gpt2:FOLDER (byte pair encoding with GPT-2's encoder.json and "
          "vocab.bpe), or train:N (one of N tokens, trained on the first 32 MiB of the training text)")
      ->type_name("KIND");
}

void add_label_options(CLI::App& command, ImportOptions& o) {
  command
      .add_option(
          "--labels", o.labels,
          "Table with the labels of --from folder, whose images then need no folders of classes: a row for each "
          "image with the file's name and a class, divided by commas, semicolons or tabs")
      ->type_name("FILE");
  command
      .add_option(
          "--label-key", o.label_key,
          "Field of KEY.json beside KEY.jpg with the label, a number or a name (--from tar); default: KEY.cls, or "
          "a field called label, class, cls, class_id, target or category")
      ->type_name("NAME");
  auto* classes = command.add_option("--classes", o.classes,
                                     "Names of the classes, or of a regression's values; default: the source's");
  classes->delimiter(',');
  command
      .add_option_function<std::string>(
          "--classes-from", [&o](const std::string& file) { o.classes = read_names(file); },
          "Text file with one class name per line, such as scripts/fashion-mnist.txt")
      ->type_name("FILE")
      ->excludes(classes);
  command
      .add_option("--on-bad-sample", o.on_bad_sample,
                  "Action on damaged images and labels without a class: fail, or skip (and list in FILE.skipped.txt)")
      ->check(one_of({"fail", "skip"}))
      ->capture_default_str();
}

void add_storage_options(CLI::App& command, ImportOptions& o) {
  command.add_option("--store", o.store, "Storage: encoded (unchanged JPEG and PNG), or pixels (decoded)")
      ->check(one_of({"encoded", "pixels"}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--size", [&o](const std::string& text) { o.size = parse_size(text); },
          "Size of stored pixels, such as 256x256: images are scaled to cover it and centre-cropped")
      ->type_name("HxW");
  command.add_option("--channels", o.channels, "Channels of decoded images: 1 (gray) or 3 (colour); default: 3")
      ->transform(one_of({"1", "3"}));
  command
      .add_option("--mean", o.mean, "Mean of each channel, of pixels scaled to 0..1; default: of the training images")
      ->transform(any_number())
      ->delimiter(',');
  command.add_option("--std", o.stddev, "Std of each channel, as for --mean")
      ->transform(number_above(0))
      ->delimiter(',');
  command
      .add_option(
          "--hold-out", o.hold_out,
          "Share of the training images, of each class, or documents, for a validation split, such as 0.1; 0: none")
      ->transform(number_from(0, 0.5))
      ->capture_default_str();
  command
      .add_option("--chunk", o.chunk, "Images per chunk, each with a checksum of HDF5's (slower to read); 0: no chunks")
      ->transform(whole_number(0))
      ->capture_default_str();
  command.add_option("--shards", o.shards, "Number of files, named FILE-00000-of-00008 and so on")
      ->transform(whole_number(1, kMostShards))
      ->capture_default_str();
}

}  // namespace

void add_import(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("import",
                                     "Create a data file from a data set in another format\n"
                                     "Under mpirun all ranks decode. If interrupted, run the same command to continue. "
                                     "Needs twice the data's disk space.");
  auto options = std::make_shared<ImportOptions>();
  add_source_options(*command, *options);
  add_label_options(*command, *options);
  add_storage_options(*command, *options);
  add_overwrite_option(*command, options->overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      outlive_reader();
      return import_data(world, *options, [](const std::string& lines) { fmt::print("{}\n", printable_lines(lines)); });
    };
  });
}

}  // namespace annulus
