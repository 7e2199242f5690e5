#include "src/cli/cli.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <sstream>

#include "src/cli/commands.h"
#include "src/cli/help.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Words = std::vector<std::string>;

// Calls `visit` with the name and the object of each command that runs something.
void for_each_command(CLI::App& app, const Words& words, const std::function<void(const Words&, CLI::App&)>& visit) {
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  if (children.empty()) visit(words, app);
  for (CLI::App* child : children) {
    Words more = words;
    more.push_back(child->get_name());
    for_each_command(*child, more, visit);
  }
}

// Parses a command line as the program does. The options keep their values afterwards.
class CommandLine {
 public:
  CommandLine() { add_commands(app_, chosen_); }

  CLI::App& app() { return app_; }

  // The message; empty if all is well.
  std::string parse(const Words& words) {
    return parse(words, [](const CLI::ParseError& error) {
      return std::string(error.what()).empty() ? error.get_name() : error.what();
    });
  }

  // The message as the program prints it.
  std::string parse_for_user(const Words& words) {
    return parse(words, [this](const CLI::ParseError& error) { return usage_error(app_, error); });
  }

 private:
  template <class MessageOf>
  std::string parse(Words words, const MessageOf& message_of) {
    std::ranges::reverse(words);
    try {
      app_.parse(words);
      return "";
    } catch (const CLI::ParseError& error) {
      return message_of(error);
    }
  }

  CLI::App app_;
  Command chosen_;
};

bool takes_numbers(const CLI::Option& option) {
  static const std::set<std::string> types{"INT",  "UINT",  "FLOAT", "SIZE", "TIME",
                                           "RATE", "SHARE", "BETAS", "WHEN", "EPOCH"};
  return !option.get_positional() && types.contains(option.get_type_name());
}

bool takes_any_sign(const std::string& name) {
  return name == "--mean";
}

}  // namespace

TEST_CASE("every numeric option of every command rejects values out of range", "[cli]") {
  CommandLine line;
  std::size_t options = 0;
  for_each_command(line.app(), {}, [&](const Words& words, CLI::App& command) {
    for (const CLI::Option* option : command.get_options({})) {
      if (!takes_numbers(*option)) continue;
      ++options;
      const std::string name = option->get_name();
      for (const std::string value :
           {"-1", "nan", "inf", "-inf", "1e400", "99999999999999999999999999", "64k", "0x10", "1,", "fast", ""}) {
        const bool is_number = value.starts_with('9');
        if ((value == "64k" && option->get_type_name() == "SIZE") || (value == "-1" && takes_any_sign(name))) continue;
        if (is_number && option->get_type_name() != "UINT" && option->get_type_name() != "INT") continue;
        if (value == "1," && option->get_delimiter() == ',') continue;
        Words all = words;
        all.push_back(name + "=" + value);
        const std::string message = line.parse(all);
        CAPTURE(words, name, value, message);
        CHECK(message.size() < 200);
        CHECK_THAT(message, Contains(name));
        CHECK(message.find("is required") == std::string::npos);
      }
    }
  });
  CHECK(options > 70);
}

TEST_CASE("the error for a number states the expected range", "[cli]") {
  CommandLine line;
  CHECK(line.parse({"train", "--lr", "fast"}) == "--lr: expected a number > 0, not \"fast\"");
  CHECK(line.parse({"train", "--lr", "0"}) == "--lr: expected a number > 0, not \"0\"");
  CHECK(line.parse({"train", "--epochs", "-1"}) ==
        "--epochs: expected a whole number from 1 to 1073741824, not \"-1\"");
  CHECK(line.parse({"train", "--batch", "64k"}) == "--batch: expected a whole number >= 1, not \"64k\"");
  CHECK(line.parse({"bench", "noise", "--step", "nan"}) == "--step: expected a number from 0.1 to 100000, not \"nan\"");
  CHECK_THAT(line.parse({"train", "--lr", std::string(1000, '9')}), Contains("99...\""));
  CHECK_THAT(line.parse({"train", "--lr", "\x1b[2J"}), Contains("\\x1b[2J"));
}

TEST_CASE("an unknown word's message names the nearest known one and the help to see", "[cli]") {
  const auto message = [](const Words& words) { return CommandLine().parse_for_user(words); };
  CHECK(message({"tarin"}) == "unknown command \"tarin\"; did you mean train? See annulus --help");
  CHECK(message({"tarin", "--data", "d"}) == message({"tarin"}));
  CHECK(message({"bench", "stpe"}) == "unknown command \"stpe\"; did you mean step? See annulus bench --help");
  CHECK(message({"squeeze"}) == "unknown command \"squeeze\"; see annulus --help");
  CHECK(message({"train", "squeeze"}) == "unexpected argument \"squeeze\"; see annulus train --help");
  CHECK(message({"train", "eval"}) == "unexpected argument \"eval\"; see annulus train --help");
  CHECK(message({"train", "--bacth", "3"}) == "unknown option --bacth; did you mean --batch? See annulus train --help");
  CHECK(message({"train", "--batch-size=3"}) ==
        "unknown option --batch-size; did you mean --batch? See annulus train --help");
  CHECK(message({"train", "--checkpoint"}) ==
        "unknown option --checkpoint; did you mean --checkpoint-every? See annulus train --help");
  CHECK(message({"bench", "step", "--confg", "c"}) ==
        "unknown option --confg; did you mean --config? See annulus bench step --help");
  CHECK(message({"train", "--injcet", "x"}) == "unknown option --injcet; see annulus train --help");  // it is hidden
  CHECK(message({"train", "-n", "4"}) == "unknown option -n; see annulus train --help");
  CHECK(message({"--data", "d", "train"}) == "--data must follow the command train; see annulus train --help");
  CHECK(message({"train", "--device", "cdua"}) ==
        "--device: expected auto, cpu or cuda, not \"cdua\"; did you mean cuda? See annulus train --help");
  CHECK(message({"eval", "--split", "val"}) ==
        "--split: expected train, validation or test, not \"val\"; did you mean validation? See annulus eval --help");
  CHECK_THAT(message({"train", "--model", "ResNet50"}), Contains("did you mean resnet50?"));
  CHECK_THAT(message({"bench", "step", "--all-reduce", "auto,rign"}), Contains("did you mean ring?"));
  CHECK_THAT(message({"train", "--model", std::string(100000, 'x')}), Contains("xx...\""));
}

TEST_CASE("an image's size has one form in all commands", "[cli]") {
  const auto message = [](const Words& words) { return CommandLine().parse_for_user(words); };
  CHECK(message({"models", "--image", "24x32x3"}).empty());
  for (const std::string size : {"24", "24x24"}) {
    CHECK(message({"train", "--data", "a", "--out", "b", "--image", size}).empty());
    CHECK(message({"bench", "step", "--image", size}).empty());
    CHECK(message({"models", "--image", size}).empty());
  }
  for (const std::string size : {"x", "24x", "0x24", "24x24x3x1", "a"})
    for (const Words& command : {Words{"train"}, Words{"bench", "step"}, Words{"models"}, Words{"eval"}}) {
      Words words = command;
      words.insert(words.end(), {"--image", size});
      CHECK_THAT(message(words), Contains("--image: expected a size such as 224, 224x160 or 224x160x3, not"));
    }
  for (const std::string size : {"24x32", "24x24x3"})
    CHECK_THAT(message({"train", "--image", size}),
               Contains("--image: expected a square without channels, such as 224 or 224x224, not"));
}

TEST_CASE("an option with too few or too many values is shown with those that it takes", "[cli]") {
  const auto message = [](const Words& words) { return CommandLine().parse_for_user(words); };
  CHECK(message({"train", "--out"}) ==
        "--out: wrong number of values, expected --out FOLDER; see annulus train --help");
  CHECK(message({"train", "--lr", "1", "--lr", "2"}) ==
        "--lr: wrong number of values, expected --lr X; see annulus train --help");
  CHECK(message({"checkpoint", "diff", "a"}) ==
        "CHECKPOINT: wrong number of values, expected CHECKPOINT CHECKPOINT; see annulus checkpoint diff --help");
  CHECK(message({"train", "--config"}) ==
        "--config: wrong number of values, expected --config FILE; see annulus train --help");
}

namespace {

// Calls `visit` with the program, its commands and theirs.
void for_each_app(CLI::App& app, const std::function<void(CLI::App&)>& visit) {
  visit(app);
  for (CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) for_each_app(*child, visit);
}

}  // namespace

TEST_CASE("the help describes every option in lines that fit a terminal", "[cli]") {
  CommandLine line;
  std::size_t commands = 0;
  for_each_app(line.app(), [&](CLI::App& command) {
    CAPTURE(command.get_name());
    ++commands;
    std::istringstream help(command.help("", CLI::AppFormatMode::All));
    for (std::string row; std::getline(help, row);) {
      CAPTURE(row);
      CHECK(row.size() <= kHelpColumns);
      CHECK_FALSE(row.ends_with(' '));
    }
    for (const CLI::Option* option : command.get_options({}))
      if (!option->get_group().empty() && option != command.get_help_all_ptr()) {
        CAPTURE(option->get_name());
        CHECK_FALSE(option->get_description().empty());
        CHECK_THAT(help.str(), Contains("\n  " + usage_of(*option)));
      }
  });
  CHECK(commands == 22);
}

TEST_CASE("a command's help", "[cli]") {
  CommandLine line;
  CHECK(line.app().get_subcommand("export")->help("annulus") ==
        R"(Export a checkpoint's network as an ONNX file, or its weights for PyTorch

Usage: annulus export FILE --checkpoint FILE [OPTIONS]

Arguments:
  FILE                      ONNX file to write, or with the extension .safetensors a file of weights

Options:
  --checkpoint FILE         Checkpoint file, such as RUN/best.h5, or a run's folder (its newest
                            checkpoint)
  --weights NAME            Weights: ema (their moving average), raw (as trained), or auto (ema if
                            stored) (default: auto)
  --overwrite               Replace existing files of any kind
  --config FILE             TOML file with more options, in lines such as lr = 0.05
  -h,--help                 Print this help
)");
  const std::string train = line.app().get_subcommand("train")->help("annulus");
  const std::string all = line.app().get_subcommand("train")->help("annulus", CLI::AppFormatMode::All);
  for (const char* rare : {"  --zero-init ", "  --servers "}) {
    CHECK(train.find(rare) == std::string::npos);
    CHECK(all.find(rare) != std::string::npos);
  }
  CHECK(train.find("  --help-all ") != std::string::npos);
  CHECK_THAT(train, Catch::StartsWith("Train a model\n\nUsage: annulus train --data FILE... --out FOLDER [OPTIONS]\n"));
  std::size_t place = 0;
  for (const char* option : {"\nOptions:\n  --model ", "\n  --data ", "\n  --out ", "\n  --epochs ", "\n  --batch ",
                             "\n  --global-batch ", "\n  --lr ", "\n  --config ", "\nTraining:\n"}) {
    CAPTURE(option);
    const std::size_t next = train.find(option);
    REQUIRE(next != std::string::npos);
    CHECK(next >= place);
    place = next;
  }
  CHECK_THAT(train, Contains("\n  --augment NAME,...        Augmentation of training images, and settings, such as\n"));
  const std::string import = line.app().get_subcommand("import")->help("annulus");
  CHECK_THAT(import, Contains("\n                            folder  a folder with CLASS/*.jpg"));
  CHECK_THAT(import, Contains("\n                                    "));  // the second column of a table is broken
  CHECK_THAT(line.app().help("annulus"),
             Contains("\n  import                    Create a data file from a data set in another format\n"));
}

TEST_CASE("the version, with the commit if the source is from a repository", "[cli]") {
  CHECK_THAT(CommandLine().parse({"--version"}),
             Catch::Matches(R"(annulus \d+\.\d+\.\d+( \(commit [0-9a-f]+(-dirty)?\))?)"));
}

TEST_CASE("texts that are parsed by functions have the same messages", "[cli]") {
  const auto message = [](const Words& words) { return CommandLine().parse(words); };
  CHECK(message({"train", "--bucket", "much"}) ==
        "--bucket: expected auto or a size of at least 4KiB, such as 1MiB, not \"much\"");
  CHECK(message({"predict-scaling", "s", "--bucket", "1"}) ==
        "--bucket: expected auto or a size of at least 4KiB, such as 1MiB, not \"1\"");
  CHECK(message({"bench", "all-reduce", "--sizes", "4KiB,0"}) ==
        "--sizes: expected a size from 1 B to 1024 GiB, such as 1MiB, not \"0\"");
  CHECK(message({"predict-scaling", "s", "--latency", "3"}) == "--latency: expected a TIME such as 20us, not \"3\"");
  CHECK(message({"import", "f", "s", "--size", "3"}) == "--size: expected height x width, such as 256x256, not \"3\"");
  CHECK(message({"train", "--optimizer", "adamw,beta1=3"}) ==
        "--optimizer beta1: expected a number from 0 to 1, not \"3\"");
  CHECK(message({"train", "--optimizer", "adamw,beta2=1"}) == "--optimizer beta2: must be below 1");
  CHECK(message({"train", "--optimizer", "sgd,momentum"}) == "--optimizer: momentum needs a value: momentum=...");
  CHECK(message({"train", "--optimizer", "sgd,trust=1"}) ==
        "--optimizer: sgd has the settings momentum, nesterov, not \"trust=1\"");
  CHECK(message({"train", "--optimizer", "sgd,momentum=0.8,momentum=0.9"}) == "--optimizer: momentum is given twice");
  CHECK(message({"train", "--optimizer", "sgd,nesterov=true"}) == "--optimizer: nesterov takes no value");
  CHECK(message({"train", "--shuffle", "global,size=1"}) == "--shuffle: global has no settings, such as \"size=1\"");
  CHECK(message({"train", "--augment", "mixup=1"}) == "--augment: expected a name before \"mixup=1\", such as auto");
  CHECK(
      message({"train", "--augment", "flop"}) ==
      "--augment: expected auto, none, flip, crop-flip, imagenet or imagenet-jitter, not \"flop\"; did you mean flip?");
  CHECK(message({"train", "--augment", "auto,rand=2"}) ==
        "--augment rand: expected changes:magnitude, such as 2:9, not \"2\"");
  CHECK(message({"train", "--weight-decay", "0.1,fc"}) ==
        "--weight-decay: expected PATTERN=NUMBER after the first, such as fc=0.01, not \"fc\"");
  CHECK(message({"train", "--metrics", "csv,jsnol"}) ==
        "--metrics: expected jsonl, csv, tensorboard, prometheus or none, not \"jsnol\"; did you mean jsonl?");
  CHECK(message({"train", "--metrics", "csv,none"}) == "--metrics: none excludes other formats");
  CHECK(CommandLine().parse_for_user({"train", "--config", "/no/such.toml"}) ==
        "--config: cannot read /no/such.toml; see annulus train --help");
}

TEST_CASE("numbers with leading zeros are decimal", "[cli]") {
  CommandLine line;
  CHECK_THAT(line.parse({"train", "--batch", "010"}), Contains("required"));
  CHECK(line.app().get_subcommand("train")->get_option("--batch")->as<std::size_t>() == 10);
}

namespace {

// Its configuration, as written by a run.
std::string configuration(CommandLine& line, const std::string& command) {
  CLI::App* app = line.app().get_subcommand(command);
  return app->config_to_str(true, false);
}

std::string parse_with(const std::string& config, Words words = {}) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "run.toml", config);
  words.insert(words.begin(), {"train", "--config", (folder / "run.toml").string()});
  CommandLine line;
  std::string message = line.parse(words);
  const std::size_t place = message.find(folder.path().string());
  return place == std::string::npos ? message : message.substr(place + folder.path().string().size() + 1);
}

}  // namespace

TEST_CASE("a run's configuration round-trips for every option and any text", "[cli]") {
  const test::TemporaryFolder folder;
  const Words awkward{"a # b",
                      "\"quoted\" and 'single'",
                      "back\\slash\\n",
                      "two\nlines",
                      "größer 猫",
                      "key = value",
                      "a[1]b",
                      "[train]",
                      "{}",
                      "tab\tand \r",
                      " blank ",
                      "%s {x}",
                      "\x1b[2J",
                      "true",
                      "7",
                      "2026-01-01",
                      "'''",
                      "\"\"\""};
  Words any_text;  // options that take it; others keep their defaults
  std::size_t options = 0;
  CommandLine probe;
  for (const CLI::Option* option : probe.app().get_subcommand("train")->get_options({})) {
    const std::string name = option->get_name();
    if (!option->get_configurable() || option->get_positional()) continue;
    ++options;
    if (name != "--data" && name != "--out" &&
        CommandLine().parse({"train", "--data", "d", "--out", "o", name, awkward.front()}).empty())
      any_text.push_back(name);
  }
  CHECK(options > 50);
  CHECK(any_text == Words{"--validation", "--whiten", "--weights", "--freeze", "--tune"});
  for (const std::string& text : awkward) {
    CAPTURE(text);
    Words words{"train"};
    for (const std::string& name : any_text) words.insert(words.end(), {name, text});
    words.insert(words.end(), {"--out", text, "--data", "a" + text + "b", "second"});
    CommandLine first;
    REQUIRE(first.parse(words) == "");
    const std::string written = configuration(first, "train");
    test::write_text(folder / "run.toml", written);
    CommandLine second;
    CHECK(second.parse({"train", "--config", (folder / "run.toml").string()}) == "");
    CHECK(configuration(second, "train") == written);
    CHECK(second.app().get_subcommand("train")->get_option("--out")->as<std::string>() == text);
    CHECK(second.app().get_subcommand("train")->get_option("--data")->as<Words>() == Words{"a" + text + "b", "second"});
  }
}

TEST_CASE("options of every type round-trip through a configuration", "[cli]") {
  const test::TemporaryFolder folder;
  CommandLine first;
  REQUIRE(first.parse({"train",
                       "--data",
                       "d",
                       "--out",
                       "o",
                       "--schedule",
                       "step:30,60.5",
                       "--bucket",
                       "1MiB",
                       "--eval-every",
                       "500",
                       "--checkpoint-every",
                       "10min",
                       "--warmup",
                       "5:.5",
                       "--optimizer",
                       "adamw,beta2=.95",
                       "--weight-decay",
                       "1e-4,fc=.01",
                       "--metrics",
                       "csv,jsonl",
                       "--seed",
                       "9223372036854775807",
                       "--lr",
                       "1e-3",
                       "--epochs",
                       "90"}) == "");
  const std::string written = configuration(first, "train");
  test::write_text(folder / "run.toml", written);
  CommandLine second;
  CHECK(second.parse({"train", "--config", (folder / "run.toml").string()}) == "");
  CHECK(configuration(second, "train") == written);
  CHECK_THAT(written, Contains("optimizer=[\"adamw\", \"beta2=.95\"]\n") && Contains("lr=0.001\n") &&
                          Contains("bucket=\"1MiB\"\n"));
}

TEST_CASE("configuration errors name file and line", "[cli]") {
  const Words needed{"--data", "d", "--out", "o"};
  CHECK(parse_with("lr = 0.1\n\nzero-init = true\n", needed) == "");
  CHECK(parse_with("lr = 0.1\nbogus = 1\n", needed) == "run.toml:2: annulus train has no setting \"bogus\"");
  CHECK(parse_with("bacth = 1\n", needed) == "run.toml:1: annulus train has no setting \"bacth\"; did you mean batch?");
  CHECK_THAT(parse_with("lr = \"fast\"\n", needed), Contains("run.toml:1: --lr: expected a number"));
  CHECK_THAT(parse_with("lr = -1\n", needed), Contains("run.toml:1: --lr: expected a number > 0, not \"-1\""));
  CHECK_THAT(parse_with("lr = nan\n", needed), Contains("run.toml:1: --lr"));
  CHECK_THAT(parse_with("epochs = 1.5\n", needed), Contains("run.toml:1: --epochs"));
  CHECK_THAT(parse_with("zero-init = 1\n", needed), Contains("run.toml:1: --zero-init: expected true or false"));
  CHECK_THAT(parse_with("out = 5\n", needed), Contains("run.toml:1: --out: expected a text"));
  CHECK_THAT(parse_with("lr = [0.1, 0.2]\n", needed), Contains("run.toml:1: --lr: takes one value"));
  CHECK_THAT(parse_with("resume = true\n", needed), Contains("run.toml:1: annulus train has no setting \"resume\""));
  CHECK_THAT(parse_with("[train]\nlr = 0.1\n", needed), Contains("run.toml:1: train"));
  CHECK_THAT(parse_with("lr\n", needed), Contains("run.toml:1:"));
  CHECK_THAT(parse_with("--lr = 1\n", needed), Contains("run.toml:1:"));
  // The command line takes precedence, but the file must still be valid.
  CHECK(parse_with("lr = 0.1\n", {"--data", "d", "--out", "o", "--lr", "0.2"}) == "");
  CHECK_THAT(parse_with("lr = \"x\"\n", {"--data", "d", "--out", "o", "--lr", "0.2"}), Contains("run.toml:1: --lr"));
}

namespace {

// The configuration of annulus train with a configuration file and `words`.
std::string combined(const std::string& config, Words words) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "run.toml", config);
  CommandLine line;
  words.insert(words.begin(), {"train", "--config", (folder / "run.toml").string(), "--data", "d", "--out", "o"});
  REQUIRE(line.parse(words) == "");
  return configuration(line, "train");
}

}  // namespace

TEST_CASE("the command line takes precedence over a configuration", "[cli]") {
  const std::string file = "lr = 0.1\nschedule = \"step:30,60\"\nepochs = 90\nzero-init = true\n";
  CHECK_THAT(combined(file, {}), Contains("\nlr=0.1\n") && Contains("\nschedule=\"step:30,60\"\n"));
  CHECK_THAT(combined(file, {"--lr", "0.2", "--epochs", "70"}), Contains("\nlr=0.2\n") && Contains("\nepochs=70\n"));
  CHECK_THAT(combined(file, {"--schedule", "cosine", "--zero-init=false"}),
             Contains("\nschedule=\"cosine\"\n") && Contains("\nzero-init=false\n"));
}

TEST_CASE("the batch size on the command line replaces either one of a configuration", "[cli]") {
  for (const std::string file : {"batch = 8\n", "global-batch = 128\n"}) {
    CAPTURE(file);
    const std::string one = combined(file, {"--batch", "16"}), all = combined(file, {"--global-batch", "512"});
    CHECK_THAT(one, Contains("\nbatch=16\n") && !Contains("global-batch"));
    CHECK_THAT(all, Contains("\nglobal-batch=512\n") && !Contains("\nbatch="));
  }
  CHECK_THAT(combined("", {}), Contains("\nbatch=64\n") && !Contains("global-batch"));
  CHECK_THAT(parse_with("batch = 8\nglobal-batch = 128\n", {"--data", "d", "--out", "o"}), Contains("excludes"));
}

TEST_CASE("options of earlier versions name what they are now, or become it in a configuration", "[cli]") {
  const Words needed{"--data", "d", "--out", "o"};
  CHECK(CommandLine().parse_for_user({"train", "--data", "d", "--out", "o", "--lr-steps", "3"}) ==
        "--lr-steps is now --schedule step:30,60,80; see annulus train --help");
  CHECK(CommandLine().parse_for_user({"eval", "--lr-steps=3"}) == "unknown option --lr-steps; see annulus eval --help");
  for (const auto& [before, now] :
       {std::pair{"schedule = \"step\"\nlr-steps = [30, 60]\nlr-power = 2\nepochs = 90\n",
                  "\nschedule=\"step:30,60\"\n"},
        {"schedule = \"polynomial\"\nlr-power = 1.5\nlr-steps = \"none\"\n", "\nschedule=\"polynomial:1.5\"\n"},
        {"lr-patience = 3\nschedule = \"plateau\"\n", "\nschedule=\"plateau:3\"\n"},
        {"lr-cycle = 4\nschedule = \"cyclic\"\n", "\nschedule=\"cyclic:4\"\n"},
        {"epochs = 9\nwarmup = 5\nwarmup-from = 0.1\n", "\nwarmup=\"5:0.1\"\n"},
        {"epochs = 9\nwarmup = 5\nwarmup-from = \"auto\"\n", "\nwarmup=\"5\"\n"},
        {"optimizer = \"sgd\"\nmomentum = 0.8\nnesterov = true\nepsilon = 1e-8\n",
         "\noptimizer=[\"sgd\", \"momentum=0.8\", \"nesterov\"]\n"},
        {"optimizer = \"lars\"\nmomentum = 0.8\ntrust = 0.002\nnesterov = false\n",
         "\noptimizer=[\"lars\", \"momentum=0.8\", \"trust=0.002\"]\n"},
        {"optimizer = \"adamw\"\nmomentum = 0.9\nadam-betas = \"0.9,0.95\"\nepsilon = 1e-7\n",
         "\noptimizer=[\"adamw\", \"beta1=0.9\", \"beta2=0.95\", \"eps=1e-07\"]\n"},
        {"lr-for = \"none\"\nhead-lr = 1\n", "\nlr-for=\"none\"\n"},
        {"weight-decay = 0.1\nweight-decay-for = [\"fc=1\", \"a=0\"]\n",
         "\nweight-decay=[\"0.1\", \"fc=1\", \"a=0\"]\n"},
        {"augment = \"flip\"\nrand-augment = \"2,9\"\nerase = 0.25\nmixup = 0.2\ncutmix = 0\n",
         "\naugment=[\"flip\", \"rand=2:9\", \"erase=0.25\", \"mixup=0.2\"]\n"},
        {"shuffle = \"block\"\nshuffle-block = 64\nshuffle-window = 16\n", "\nshuffle=[\"block\", \"size=64\"]\n"},
        {"shuffle = \"global\"\nshuffle-block = 256\nshuffle-window = 16\n", "\nshuffle=\"global\"\n"}}) {
    CAPTURE(before);
    CHECK_THAT(combined(before, {}), Contains(now));
  }
  CHECK(parse_with("lr = 0.1\nlr-steps = [3]\n", needed) == "run.toml:2: --lr-steps is now --schedule step:30,60,80");
  // A part of the network may be named head, and --head-lr always meant the last layer.
  for (const std::string before : {"a=2", "none"})
    CHECK(parse_with("lr-for = \"" + before + "\"\nhead-lr = 3\n", needed) ==
          "run.toml:2: --head-lr is now --lr-for head=10 (the part named head, or else the last layer with weights)");
  CHECK(parse_with("lr-power = 1\nschedule = \"cosine\"\n", needed) ==
        "run.toml:1: --lr-power is now --schedule polynomial:2");
}

TEST_CASE("a configuration's learning rate is not combined with another optimizer", "[cli]") {
  const std::string file = "model = \"mlp\"\noptimizer = \"lars,trust=0.002\"\nlr = 10\nwarmup = 0.5\n";
  const Words needed{"--data", "d", "--out", "o"};
  const auto with = [&](Words words) {
    words.insert(words.end(), needed.begin(), needed.end());
    return parse_with(file, words);
  };
  CHECK(with({}) == "");
  CHECK(with({"--optimizer", "lars"}) == "");
  CHECK(with({"--optimizer", "adamw"}) ==
        "run.toml:3: lr is for the optimizer lars: with --optimizer adamw also give --lr");
  CHECK(with({"--optimizer", "adamw", "--lr", "10"}) == "");
}

TEST_CASE("options of another optimizer or schedule are refused", "[cli]") {
  for (const auto& [options, names] :
       {std::pair{"--optimizer lars,nesterov", "lars has the settings momentum, trust, not \"nesterov\""},
        {"--schedule cosine:3", "--schedule cosine: takes no value, such as \"3\""},
        {"--schedule step:3,x", "--schedule step: expected a number > 0, not \"x\""},
        {"--lr-factor 0.5", "--lr-factor belongs to"},
        {"--warmup 0:0.5", "--warmup 0:0.5 has no warm-up"},
        {"--warmup 1:2", "--warmup: expected a number from 0 to 1, not \"2\""},
        {"--sync-batch-norm --wire fp16", "--sync-batch-norm does not go with --wire"},
        {"--batch 8 --global-batch 16", "excludes"},
        {"--schedule cosine --warmup 8", "leaves none of the 1 epochs"}}) {
    CAPTURE(options);
    std::istringstream rest(options);
    Words words{"train", "--data", "d", "--out", "o"};
    for (std::string word; rest >> word;) words.push_back(word);
    CHECK_THAT(CommandLine().parse(words), Contains(names));
  }
  // An option may be from a file.
  CHECK_THAT(parse_with("lr-factor = 0.5\n", {"--data", "d", "--out", "o"}),
             Contains("run.toml: --lr-factor belongs to --schedule step or plateau, and this is constant"));
}

}  // namespace annulus
