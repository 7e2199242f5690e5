#include "src/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "src/checkpoint/checkpoint_writer.h"
#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/score_of.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

Score score(int correct) {
  return test::score_of(100, {{Measure::accuracy, correct}});
}

// A checkpoint after `step` steps, with `correct` of 100 images classified correctly; -1: not evaluated.
Checkpoint after_steps(std::uint64_t step, int correct = -1) {
  Checkpoint checkpoint;
  checkpoint.model = "lenet";
  checkpoint.run.step = step;
  checkpoint.parameters = {{"weight", {2}, {static_cast<float>(step), 1}, {{0, 0}}}};
  if (correct >= 0) checkpoint.run.score = score(correct);
  return checkpoint;
}

// The steps of the existing checkpoints.
std::set<int> steps(const fs::path& run) {
  std::set<int> found;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    if (entry.path().extension() == ".h5") found.insert(std::stoi(entry.path().stem().string().substr(5)));
  return found;
}

void write(const CheckpointFolder& folder, const Checkpoint& checkpoint) {
  folder.write(checkpoint, arrays_of(checkpoint));
}

std::uint64_t newest_step(const fs::path& run) {
  return CheckpointFolder(run, 2).newest().value().file.header().run.step;
}

void truncate(const fs::path& file) {
  fs::resize_file(file, fs::file_size(file) - 200);
}

}  // namespace

TEST_CASE("a folder keeps the last checkpoints and the best, with links to both", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 2);
  CHECK(folder.empty());
  CHECK_FALSE(folder.newest());
  CHECK_FALSE(folder.best());
  write(folder, after_steps(10));
  CHECK_FALSE(folder.empty());
  CHECK_FALSE(fs::exists(run / "best.h5"));
  write(folder, after_steps(20, 70));
  write(folder, after_steps(30, 90));
  write(folder, after_steps(40, 90));  // the first of equals is the best
  write(folder, after_steps(50));
  write(folder, after_steps(1234567890, 80));
  CHECK(steps(run.path()) == std::set{30, 50, 1234567890});
  CHECK(read_checkpoint(run / "checkpoint.h5").run.step == 1234567890);
  CHECK(read_checkpoint(run / "best.h5").run.step == 30);
  CHECK(folder.best() == score(90));
  CHECK(fs::read_symlink(run / "best.h5") == "checkpoints/step-000000030.h5");  // the folder may be moved
  CHECK(newest_step(run.path()) == 1234567890);
  CHECK(run.files() == 3);
}

TEST_CASE("a writer killed at any stage leaves a complete newest checkpoint", "[checkpoint_folder]") {
  struct Killed {};
  const std::string stage = GENERATE("written", "renamed", "linked");
  CAPTURE(stage);
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 1);
  write(folder, after_steps(10, 50));
  write(folder, after_steps(20, 40));
  const CheckpointFolder killed(run.path(), 1, [&](std::uint64_t step, std::string_view reached) {
    if (step == 30 && reached == stage) throw Killed{};
  });
  CHECK_THROWS_AS(write(killed, after_steps(30, 60)), Killed);
  CHECK(newest_step(run.path()) == (stage == "written" ? 20 : 30));
  CHECK(read_checkpoint(run / "checkpoint.h5").run.step == (stage == "linked" ? 30 : 20));
  CHECK(folder.best() == (stage == "written" ? score(50) : score(60)));
  // A resumed run restores the links.
  write(folder, after_steps(40, 55));
  CHECK(steps(run.path()) == (stage == "written" ? std::set{40} : std::set{30, 40}));
  CHECK(read_checkpoint(run / "checkpoint.h5").run.step == 40);
  CHECK(read_checkpoint(run / "best.h5").run.step == (stage == "written" ? 40 : 30));
}

TEST_CASE("a killed writer's partial file is ignored", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 2);
  write(folder, after_steps(10));
  test::write_text(run / "checkpoints/step-000000020.h5.partial", "half");
  fs::create_symlink("nowhere", run / "checkpoint.h5.partial");
  CHECK(newest_step(run.path()) == 10);
  write(folder, after_steps(20));
  CHECK(newest_step(run.path()) == 20);
  CHECK(read_checkpoint(run / "checkpoint.h5").run.step == 20);
  CHECK_FALSE(fs::exists(run / "checkpoints/step-000000020.h5.partial"));
}

TEST_CASE("a damaged checkpoint is skipped with a warning, and later removed", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 3);
  for (const std::uint64_t step : {10, 20, 30}) write(folder, after_steps(step, static_cast<int>(step)));
  truncate(run / "checkpoints/step-000000030.h5");
  test::write_text(run / "checkpoints/step-000000020.h5", "");
  const auto found = folder.newest();
  REQUIRE(found);
  CHECK(found->file.header().run.step == 10);
  CHECK(found->file.path() == run / "checkpoints/step-000000010.h5");
  REQUIRE(found->damaged.size() == 2);
  CHECK_THAT(found->damaged[0], Contains("skipped a damaged checkpoint") && Contains("step-000000030.h5"));
  CHECK_THAT(found->damaged[1], Contains("step-000000020.h5"));
  CHECK(folder.best() == score(10));
  write(folder, after_steps(15));
  CHECK(steps(run.path()) == std::set{10, 15});
  CHECK(read_checkpoint(run / "best.h5").run.step == 10);

  truncate(run / "checkpoints/step-000000010.h5");
  truncate(run / "checkpoints/step-000000015.h5");
  CHECK_THAT(test::error_of([&] { folder.newest(); }),
             Contains("step-000000015.h5") && Contains("the 1 before it cannot be read either"));
}

TEST_CASE("a checkpoint that cannot be opened is neither skipped nor removed", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 1);
  const fs::path best = run / "checkpoints/step-000000010.h5", away = run / "away.h5";
  write(folder, after_steps(10, 90));
  write(folder, after_steps(20, 50));
  const auto hide = [&](const fs::path& file) {  // opening fails also for root, and for a while only
    fs::rename(file, away);
    fs::create_symlink(file.filename(), file);
  };
  const auto restore = [&](const fs::path& file) { fs::rename(away, file); };
  hide(best);
  write(folder, after_steps(30, 60));
  restore(best);
  CHECK(steps(run.path()) == std::set{10, 30});
  write(folder, after_steps(40, 70));
  CHECK(steps(run.path()) == std::set{10, 40});
  CHECK(folder.best() == score(90));
  const fs::path newest = run / "checkpoints/step-000000040.h5";
  hide(newest);
  CHECK_THAT(test::error_of([&] { folder.newest(); }),
             Contains("step-000000040.h5: cannot open: ") && Contains("it may be intact"));
  restore(newest);
  CHECK(newest_step(run.path()) == 40);
}

TEST_CASE("a checkpoint of a newer format version is an error", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  const CheckpointFolder folder(run.path(), 2);
  write(folder, after_steps(10));
  write(folder, after_steps(20));
  hdf5::NewFile newer(run / "newer.h5");
  newer.root().set_string("format", "annulus checkpoint");
  newer.root().set_integer("version", 99);
  write_atomically(run / "checkpoints/step-000000020.h5", newer.image());
  CHECK_THAT(test::error_of([&] { folder.newest(); }), Contains("step-000000020.h5") && Contains("version 99"));
}

TEST_CASE("a single checkpoint file can be resumed from", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  write_checkpoint(run / "checkpoint.h5", after_steps(10));  // as left by earlier versions
  const CheckpointFolder folder(run.path(), 2);
  CHECK_FALSE(folder.empty());
  CHECK(newest_step(run.path()) == 10);
  write(folder, after_steps(20));
  CHECK(newest_step(run.path()) == 20);
  CHECK(fs::is_symlink(run / "checkpoint.h5"));
}

TEST_CASE("a checkpoint is found by file or by run folder", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  CHECK_THAT(test::error_of([&] { find_checkpoint(run.path()); }), Contains("no checkpoint in this folder"));
  CHECK_THAT(test::error_of([&] { find_checkpoint(run / "none.h5"); }), Contains("none.h5"));
  const CheckpointFolder folder(run.path(), 2);
  write(folder, after_steps(10, 90));
  write(folder, after_steps(20, 80));
  CHECK(find_checkpoint(run.path()).file.header().run.step == 20);
  CHECK(find_checkpoint(run / "best.h5").file.header().run.step == 10);
}

TEST_CASE("a writer runs in the background, and reports errors later", "[checkpoint_folder]") {
  const test::TemporaryFolder run;
  CheckpointWriter writer({run.path(), 2});
  writer.check();
  writer.finish();
  writer.begin(after_steps(10));
  writer.finish();
  CHECK(newest_step(run.path()) == 10);
  CHECK(writer.seconds() > 0);
  {
    const test::FileSizeLimit full(1000);
    writer.begin(after_steps(20));
    CHECK_THAT(test::error_of([&] { writer.finish(); }), Contains("step-000000020.h5") && Contains("File too large"));
  }
  writer.check();  // the error has been reported
  CHECK(newest_step(run.path()) == 10);
  writer.begin(after_steps(20));
  writer.finish();
  CHECK(newest_step(run.path()) == 20);
}

}  // namespace annulus
