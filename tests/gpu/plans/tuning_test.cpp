// The file of measured choices.

#include <fmt/format.h>
#include <catch2/catch.hpp>

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
