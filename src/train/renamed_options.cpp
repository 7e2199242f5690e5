#include "src/train/renamed_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace annulus {
namespace {

constexpr std::array kRenamed{
    RenamedOption{"lr-steps", "schedule", "step:30,60,80", "step", "none", ":{all}"},
    RenamedOption{"lr-power", "schedule", "polynomial:2", "polynomial", "2", ":{all}"},
    RenamedOption{"lr-cycle", "schedule", "cyclic:4", "cyclic", "0", ":{all}"},
    RenamedOption{"lr-patience", "schedule", "plateau:10", "plateau", "10", ":{all}"},
    RenamedOption{"warmup-from", "warmup", "5:0.1", "", "auto", ":{all}"},
    RenamedOption{"momentum", "optimizer", "sgd,momentum=0.9", "sgd", "0.9", "momentum={all}"},
    RenamedOption{"momentum", "optimizer", "lars,momentum=0.9", "lars", "0.9", "momentum={all}"},
    RenamedOption{"nesterov", "optimizer", "sgd,nesterov", "sgd", "false", "nesterov"},
    RenamedOption{"trust", "optimizer", "lars,trust=0.001", "lars", "0.001", "trust={all}"},
    RenamedOption{"adam-betas", "optimizer", "adamw,beta1=0.9,beta2=0.95", "adamw", "0.9,0.999",
                  "beta1={first},beta2={second}"},
    RenamedOption{"epsilon", "optimizer", "adamw,eps=1e-8", "adamw", "1e-08", "eps={all}"},
    RenamedOption{"head-lr", "lr-for", "head=10 (the part named head, or else the last layer with weights)", "none",
                  "1", nullptr},
    RenamedOption{"weight-decay-for", "weight-decay", "1e-4,fc=0.01", "", "none", "{all}"},
    RenamedOption{"verbose", "print-config", "(a run also writes its options to OUT/config.toml)", "", "false", ""},
    RenamedOption{"rand-augment", "augment", "imagenet,rand=2:9", "", "0,9", "rand={first}:{second}"},
    RenamedOption{"erase", "augment", "imagenet,erase=0.25", "", "0", "erase={all}"},
    RenamedOption{"mixup", "augment", "imagenet,mixup=0.2", "", "0", "mixup={all}"},
    RenamedOption{"cutmix", "augment", "imagenet,cutmix=1", "", "0", "cutmix={all}"},
    RenamedOption{"shuffle-block", "shuffle", "block,size=256", "block", "256", "size={all}"},
    RenamedOption{"shuffle-window", "shuffle", "block,window=16", "block", "16", "window={all}"},
};

std::string value_of(const RenamedOption& row, const std::string& all) {
  const std::size_t comma = std::min(all.find(','), all.size());
  return fmt::format(fmt::runtime(row.form), fmt::arg("all", all), fmt::arg("first", all.substr(0, comma)),
                     fmt::arg("second", all.substr(std::min(comma + 1, all.size()))));
}

void add_value(std::vector<std::string>& values, const std::string& value, const RenamedOption& row) {
  if (value.starts_with(':')) {
    values.front() += value;
  } else if (values.front() == "none" && values.front() == row.of) {
    values = {value};
  } else {
    values.push_back(value);
  }
}

}  // namespace

std::string RenamedOption::message() const {
  return fmt::format("--{} is now --{} {}", old, option, example);
}

const RenamedOption* find_renamed(std::string_view old) {
  const auto* found = std::ranges::find(kRenamed, old, &RenamedOption::old);
  return found == kRenamed.end() ? nullptr : &*found;
}

std::vector<std::string> merge_renamed(const FindValues& find) {
  std::vector<std::string> present, merged;
  for (const RenamedOption& row : kRenamed) {
    const std::vector<std::string>* old = find(row.old);
    if (old == nullptr) continue;
    if (std::ranges::find(present, row.old) == present.end()) present.emplace_back(row.old);
    const std::string all = fmt::format("{}", fmt::join(*old, ","));
    std::vector<std::string>* values = find(row.option);
    const bool belongs =
        row.form != nullptr && values != nullptr && !values->empty() && (*row.of == '\0' || values->front() == row.of);
    if (all != row.initial && !belongs) continue;
    if (all != row.initial) add_value(*values, value_of(row, all), row);
    merged.emplace_back(row.old);
  }
  std::erase_if(present, [&](const std::string& old) { return std::ranges::find(merged, old) != merged.end(); });
  return present;
}

}  // namespace annulus
