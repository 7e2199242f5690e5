// The file of measured choices.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "kernels/cuda/vendor/cudnn_attention.h"
#include "kernels/cuda/vendor/cudnn_choice.h"
#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "tests/gpu/plans/h200.h"
#include "tests/unit/error_text.h"

namespace annulus::test {
namespace {

using Catch::Contains;
using cuda::ConvolutionTuning;
using cuda::cudnn::Choice;

const ConvolutionTuning::Measured kFirst{Choice{7, {{2, 4}, {13, 0}}}, 12.5};
const ConvolutionTuning::Measured kSecond{Choice{8, {}}, 3};

cuda::ConvolutionProblem problem() {
  return {cuda::Forward{}, Precision::bf16, 32, 64, 28, 28, 128, 3, 1, 1};
}

std::string platform() {
  return fmt::format("NVIDIA H200, cuDNN {}", cudnnGetVersion());
}

TEST_CASE("measurements are reused on the same platform only") {
  const TemporaryFolder folder;
  ConvolutionTuning(folder / "tuning.json", "A").add("problem", kFirst);

  const auto found = ConvolutionTuning(folder / "tuning.json", "A").find("problem");
  REQUIRE(found);
  CHECK(found->choice == kFirst.choice);
  CHECK(found->microseconds == kFirst.microseconds);
  CHECK(!ConvolutionTuning(folder / "tuning.json", "A").find("another problem"));
  CHECK(!ConvolutionTuning(folder / "tuning.json", "B").find("problem"));
  CHECK(folder.files() == 1);
}

TEST_CASE("entries without a choice: times of other work, and problems without a plan") {
  const TemporaryFolder folder;
  ConvolutionTuning tuning(folder / "tuning.json", "A");
  tuning.add("copy", {.microseconds = 5});
  tuning.add("problem without a plan", {});
  const ConvolutionTuning again(folder / "tuning.json", "A");
  CHECK(again.find("copy")->microseconds == 5);
  CHECK(!again.find("copy")->choice);
  CHECK(again.find("problem without a plan")->microseconds == std::numeric_limits<double>::infinity());
  CHECK(!again.find("problem without a plan")->choice);
}

TEST_CASE("a choice that was not measured is known as such, and does not replace a measured one") {
  const TemporaryFolder folder;
  ConvolutionTuning first(folder / "tuning.json", "A"), second(folder / "tuning.json", "A");
  first.add("problem", {.choice = kFirst.choice, .unmeasured = true});
  const auto found = ConvolutionTuning(folder / "tuning.json", "A").find("problem");
  CHECK(found->unmeasured);
  CHECK(found->choice == kFirst.choice);
  second.add("problem", kSecond);
  first.add("other", kFirst);
  CHECK(ConvolutionTuning(folder / "tuning.json", "A").find("problem")->choice == kSecond.choice);
  CHECK_FALSE(ConvolutionTuning(folder / "tuning.json", "A").find("problem")->unmeasured);
}

TEST_CASE("a choice is kept for a problem that was left out before") {
  const TemporaryFolder folder;
  ConvolutionTuning tuning(folder / "tuning.json", "A");
  tuning.add("problem", {.unmeasured = true});
  tuning.add("problem", {.choice = kFirst.choice, .unmeasured = true});
  CHECK(ConvolutionTuning(folder / "tuning.json", "A").find("problem")->choice == kFirst.choice);
}

// Candidates with these times in microseconds, 0 for one that does not run.
struct Candidates {
  std::vector<double> times;
  std::size_t measured = 0;

  std::size_t choose(cuda::TunedChoice& choice) {
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < times.size(); ++i) choices.push_back({static_cast<std::int64_t>(i), {}});
    return choice.fastest("problem", choices, [&](std::size_t i, double) {
      ++measured;
      if (times[i] == 0) fail("candidate {} does not run", i);
      return times[i];
    });
  }
};

TEST_CASE("the fastest candidate is chosen, and found again without measuring") {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  const Tuning tuning{.file = folder / "tuning.json",
                      .report = [&](const std::string& line) { lines.push_back(line); }};
  const auto choose = [&](Candidates& candidates, double seconds) {
    cuda::TunedChoice choice(tuning.file, "A", std::make_shared<cuda::TuningBudget>(tuning, seconds));
    return candidates.choose(choice);
  };
  Candidates candidates{{5, 0, 3, 4}};
  CHECK(choose(candidates, 30) == 2);
  CHECK(candidates.measured == 4);
  CHECK(choose(candidates, 30) == 2);
  CHECK(choose(candidates, 0) == 2);
  CHECK(candidates.measured == 4);
  CHECK(lines.empty());
  Candidates fewer{{5, 0}};
  CHECK_THAT(error_of([&] { choose(fewer, 30); }), Contains("engine 2") && Contains("delete the file"));
  Candidates none{{0, 0}};
  std::filesystem::remove(tuning.file);
  CHECK_THAT(error_of([&] { choose(none, 30); }), Contains("candidate 1 does not run"));
}

TEST_CASE("after the time for tuning the first candidate is chosen, also by later runs, which say so") {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  const Tuning tuning{.file = folder / "tuning.json",
                      .report = [&](const std::string& line) { lines.push_back(line); }};
  Candidates candidates{{5, 3}};
  {
    cuda::TunedChoice choice(tuning.file, "A", std::make_shared<cuda::TuningBudget>(tuning, 0));
    CHECK(candidates.choose(choice) == 0);
    CHECK(candidates.choose(choice) == 0);
  }
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("the 0 s are over") && Contains("later runs have the same bits"));
  cuda::TunedChoice later(tuning.file, "A", std::make_shared<cuda::TuningBudget>(tuning, 30));
  CHECK(candidates.choose(later) == 0);
  CHECK(candidates.measured == 0);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[1], Contains("were not measured") && Contains("delete it to measure again"));
}

TEST_CASE("time is counted once for nested measurements") {
  cuda::TuningBudget budget({}, 1e-3);
  CHECK_FALSE(budget.spent());
  const double before = now_seconds();
  {
    const cuda::TuningBudget::Spending outer(budget), inner(budget);
    while (!budget.spent()) continue;
  }
  const double spent = budget.seconds(), passed = now_seconds() - before;
  CHECK(spent >= 1e-3);
  CHECK(spent <= passed);
  CHECK(budget.seconds() == spent);
}

TEST_CASE("concurrent writers of one file keep each other's entries") {
  const TemporaryFolder folder;
  ConvolutionTuning a(folder / "tuning.json", "A"), b(folder / "tuning.json", "A"), other(folder / "tuning.json", "B");
  a.add("first", kFirst);
  b.add("second", kSecond);
  other.add("first", kSecond);
  a.add("third", kSecond);

  const ConvolutionTuning all(folder / "tuning.json", "A");
  CHECK(all.find("first")->choice == kFirst.choice);
  CHECK(all.find("second")->choice == kSecond.choice);
  CHECK(all.find("third"));
  CHECK(ConvolutionTuning(folder / "tuning.json", "B").find("first")->choice == kSecond.choice);
}

TEST_CASE("a foreign or damaged file is refused and not changed") {
  const TemporaryFolder folder;
  const auto file = folder / "tuning.json";
  const auto whole = [&] {
    ConvolutionTuning(file, "A").add("problem", kFirst);
    return read_text(file);
  }();
  for (const std::string& text :
       {std::string("a letter"), std::string(), whole.substr(0, whole.size() / 2),
        std::string(R"({"format": "something else", "platforms": {}})"), std::string("[1]")}) {
    INFO(text);
    write_text(file, text);
    CHECK_THAT(error_of([&] { ConvolutionTuning(file, "A"); }), Contains(file.string()) && Contains("delete it"));
    CHECK(read_text(file) == text);
  }
  write_text(file, R"({"format": "annulus convolution tuning 1", "platforms": {"A": {"problem": {"engine": "x"}}}})");
  CHECK_THAT(error_of([&] { ConvolutionTuning(file, "A"); }), Contains("entries for A") && Contains("delete the file"));
  CHECK_NOTHROW(ConvolutionTuning(file, "B"));
  CHECK_THAT(error_of([&] { ConvolutionTuning(folder / "none" / "tuning.json", "A").add("problem", kFirst); }),
             Contains("cannot write: No such file or directory"));
}

// A choice of cuDNN's heuristics, as read from a file: an engine's number and knobs.
TEST_CASE("a plan is built from the stored choice") {
  const TemporaryFolder folder;
  const auto file = folder / "tuning.json";
  const Choice chosen = [] {
    const auto planner = cuda::make_convolution_planner_for(h200());
    return plan(*planner, problem())->configuration().choice;
  }();
  REQUIRE(!chosen.knobs.empty());
  ConvolutionTuning(file, platform()).add(to_string(problem()), {chosen, 1});

  const auto planner = cuda::make_convolution_planner_for(h200(), {.file = file});
  CHECK(plan(*planner, problem())->configuration().choice == chosen);

  cuda::ConvolutionProblem unknown = problem();
  unknown.batch = 16;
  CHECK_THAT(error_of([&] { planner->plan(unknown); }), Contains("there is no GPU here to measure on"));
}

TEST_CASE("after the time for tuning, convolutions get the plans of heuristics, also in later runs") {
  const TemporaryFolder folder;
  const Tuning tuning{.file = folder / "tuning.json"};
  const auto plain = plan(*cuda::make_convolution_planner_for(h200()), problem())->configuration().choice;
  const auto spent = std::make_shared<cuda::TuningBudget>(tuning, 0);
  const auto first = cuda::make_convolution_planner_for(h200(), tuning, spent);
  CHECK(plan(*first, problem())->configuration().choice == plain);
  // A later run has time, and nothing to measure.
  CHECK(plan(*cuda::make_convolution_planner_for(h200(), tuning), problem())->configuration().choice == plain);
}

TEST_CASE("attention is planned by the stored choice, and by heuristics after the time for tuning") {
  const TemporaryFolder folder;
  const Tuning tuning{.file = folder / "tuning.json"};
  using Pass = cuda::AttentionProblem::Pass;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const cuda::AttentionProblem attention{pass, Precision::bf16, true, 16, 12, 1024, 64, 3 * 768, 768};
    const auto chosen = [&](const Tuning& with, std::shared_ptr<cuda::TuningBudget> budget = nullptr) {
      const auto made = cuda::make_attention_planner_for(h200(), with, std::move(budget))->plan(attention);
      REQUIRE(made);
      return dynamic_cast<const cuda::CudnnAttentionPlan&>(*made).configuration().choice;
    };
    CHECK_THAT(error_of([&] { chosen(tuning); }), Contains("there is no GPU here to measure on"));
    const Choice plain = chosen({});
    CHECK(chosen(tuning, std::make_shared<cuda::TuningBudget>(tuning, 0)) == plain);
    CHECK(chosen(tuning) == plain);

    const auto all = [&] {
      const auto graph = cuda::attention_graph(attention);
      std::vector<Choice> found;
      for (const auto& c :
           cuda::cudnn::configurations(graph.graph, cuda::cudnn::device_properties(h200()), CUDNN_HEUR_MODE_A))
        if (cuda::cudnn::objection(c, attention.precision).empty()) found.push_back(c.choice);
      return found;
    }();
    fmt::print("attention {}: {} candidates\n", pass == Pass::forward ? "forward" : "backward", all.size());
    ConvolutionTuning(tuning.file, platform()).add(to_string(attention), {all.back(), 1});
    CHECK(chosen(tuning) == all.back());
    ConvolutionTuning(tuning.file, platform()).add(to_string(attention), {Choice{12345, {}}, 1});
    CHECK_THAT(error_of([&] { chosen(tuning); }), Contains("engine 12345") && Contains("delete the file"));
  }
}

TEST_CASE("a stored choice that does not fit the problem is refused") {
  const TemporaryFolder folder;
  const auto file = folder / "tuning.json";
  ConvolutionTuning(file, platform()).add(to_string(problem()), {Choice{12345, {}}, 1});
  const auto planner = cuda::make_convolution_planner_for(h200(), {.file = file});
  CHECK_THAT(error_of([&] { planner->plan(problem()); }),
             Contains("engine 12345 with knobs") && Contains("delete the file to measure again"));
}

}  // namespace
}  // namespace annulus::test
