#include "src/train/recipes.h"

#include <catch2/catch.hpp>
#include <set>

#include "src/cli/commands.h"
#include "tests/unit/error_text.h"

namespace annulus {
namespace {

// Parses `annulus train` with a recipe and other options.
struct CommandLine {
  explicit CommandLine(std::string_view recipe, const std::string& more = "") {
    add_train(app, chosen);
    app.parse("train --data d.h5 --out o --recipe " + std::string(recipe) + " " + more);
  }
  std::string value(std::string_view option) {
    return app.get_subcommand("train")->get_option("--" + std::string(option))->as<std::string>();
  }

  CLI::App app;
  Command chosen;
};

}  // namespace

TEST_CASE("every recipe is a choice of --recipe") {
  std::set<std::string_view> names;
  for (const Recipe& recipe : recipes()) {
    CAPTURE(recipe.name);
    CHECK(names.insert(recipe.name).second);
    CHECK_FALSE(recipe.source.empty());
    CommandLine line(recipe.name);
    CHECK(line.chosen.run);
    for (const auto& [option, value] : recipe.settings) {
      CAPTURE(option);
      CHECK(line.app.get_subcommand("train")->get_option("--" + std::string(option))->count() > 0);
      if (value.find(',') == value.npos) CHECK(line.value(option) == value);
    }
  }
  CHECK_THAT(test::error_of([] { find_recipe("goya"); }), Catch::Contains("known recipes: goyal, he-cifar,"));
}

TEST_CASE("explicit options, and those that they imply, take precedence over a recipe") {
  CommandLine line("goyal", "--lr 0.2 --schedule cosine");
  CHECK(line.value("lr") == "0.2");
  CHECK(line.value("lr-per") == "256");
  CHECK(line.app.get_subcommand("train")->get_option("--lr-steps")->count() == 0);
  CommandLine batch("he-cifar", "--batch 16 --optimizer adamw");
  CHECK(batch.app.get_subcommand("train")->get_option("--global-batch")->count() == 0);
  CHECK(batch.value("weight-decay") == "0.0001");
  CHECK(batch.value("augment") == "crop-flip");
  CHECK(CommandLine("goyal", "--augment none").value("augment") == "none");
  // LARS's learning rate does not suit other optimizers.
  CommandLine other("lars", "--optimizer sgd");
  for (const char* option : {"lr", "trust", "momentum"})
    CHECK(other.app.get_subcommand("train")->get_option(std::string("--") + option)->count() == 0);
  CHECK(other.value("warmup") == "5");
  // Repeating a recipe's own options changes nothing.
  for (const auto& [recipe, own] : {std::pair{"goyal", "--optimizer sgd --schedule step --batch 32 --warmup 5.0"},
                                    {"lars", "--optimizer lars --schedule polynomial"},
                                    {"he-cifar", "--global-batch 128 --lr 1e-1"}}) {
    CAPTURE(own);
    CommandLine plain(recipe), said(recipe, own);
    for (const auto& setting : find_recipe(recipe).settings)
      if (setting.first != "lr" && setting.first != "warmup" && setting.second.find(',') == std::string_view::npos)
        CHECK(said.value(setting.first) == plain.value(setting.first));
  }
  CHECK(CommandLine("bag-of-tricks", "--warmup 5").value("warmup-from") == "0");
  CHECK(CommandLine("bag-of-tricks", "--warmup 6").app.get_subcommand("train")->get_option("--warmup-from")->count() ==
        0);
  CHECK_THROWS_WITH(CommandLine("goyal", "--epochs 3"), Catch::Contains("--lr-steps 30,60,80"));
  CHECK_THROWS_WITH(CommandLine("goyal", "--epochs 3 --lr-steps 1,2"), Catch::Contains("--warmup 5 is longer"));
  CHECK(CommandLine("goyal", "--epochs 3 --lr-steps 1,2 --warmup 1").chosen.run);
  CHECK_THROWS_WITH(CommandLine("nobody's"), Catch::Contains("unknown recipe"));
}

TEST_CASE("options of another optimizer or schedule are refused") {
  for (const auto& [options, names] : {std::pair{"--optimizer lars --nesterov", "--nesterov belongs to"},
                                       {"--trust 0.1", "--trust belongs to"},
                                       {"--adam-betas 0.5,0.9", "--adam-betas and --epsilon belong to"},
                                       {"--optimizer adamw --adam-betas 0.5", "--adam-betas"},
                                       {"--optimizer adamw --adam-betas 0.5,1", "--adam-betas"},
                                       {"--lr-steps 3", "--lr-steps belongs to"},
                                       {"--optimizer adamw --momentum 0.5", "--momentum belongs to"},
                                       {"--lr-factor 0.5", "--lr-factor belongs to"},
                                       {"--schedule cosine --lr-power 1", "--lr-power belongs to"},
                                       {"--sync-batch-norm --wire fp16", "--sync-batch-norm all-reduces statistics"},
                                       {"--schedule cosine --warmup 8", "leaves none of the 1 epochs"}}) {
    CAPTURE(options);
    CLI::App app;
    Command chosen;
    add_train(app, chosen);
    CHECK_THROWS_WITH(app.parse(std::string("train --data d.h5 --out o ") + options), Catch::Contains(names));
  }
}

}  // namespace annulus
