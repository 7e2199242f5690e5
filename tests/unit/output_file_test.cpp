#include "src/io/output_file.h"

#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "kernels/base/error.h"
#include "src/io/folder_claim.h"
#include "src/io/hdf5.h"
#include "src/metrics/results.h"
#include "src/step/timeline.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using test::error_of;
using test::TemporaryFolder;
using test::write_text;

void write_data_file(const std::filesystem::path& file) {
  hdf5::NewFile made(file);
  hdf5::Group root = made.root();
  root.set_strings("classes", std::vector<std::string>{"a"});
  root.set_floats("mean", std::vector<float>{0.5f});
  root.set_floats("deviation", std::vector<float>{0.5f});
  root.create_group("train");
  const std::vector<std::byte> image = made.image();
  write_text(file, {reinterpret_cast<const char*>(image.data()), image.size()});
}

std::string refusal(const Output& output, const std::vector<std::filesystem::path>& inputs = {},
                    bool overwrite = false) {
  return error_of([&] { expect_replaceable(output, inputs, overwrite); });
}

}  // namespace

TEST_CASE("a new file is accepted, and so is no file", "[output_file]") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(expect_replaceable({folder / "new.json", FileKind::evaluation}, {}, false));
  CHECK_NOTHROW(expect_replaceable({"", FileKind::evaluation}, {}, false));
  CHECK_THAT(refusal({folder / "none/new.json", FileKind::evaluation}), Contains("No such file or directory"));
}

TEST_CASE("only an earlier file of the same kind may be replaced", "[output_file]") {
  const TemporaryFolder folder;
  const std::filesystem::path report = folder / "report", data = folder / "data", onnx = folder / "onnx",
                              timeline = folder / "timeline", predictions = folder / "predictions",
                              skipped = folder / "skipped", run = folder / "run", notes = folder / "notes";
  write_json(report, FileKind::evaluation, {{"accuracy", 1}});
  write_data_file(data);
  write_text(onnx, std::string("\x08\x07\x12\x07") + "annulus\x1a\x05");
  write_text(timeline, "[\n" + std::string(kTimelineMark) + "\n]\n");
  write_text(predictions, "{\"image\": \"a.png\", \"top\": []}\n");
  write_text(skipped, "a.png\tis damaged\n");
  write_text(run, std::string(kRunEvaluationMark) + "\"step\":1}\n");
  write_text(notes, "{\"version\": 1, \"rows\": []}\n");
  const std::vector<Output> ours{{report, FileKind::evaluation},
                                 {data, FileKind::data},
                                 {onnx, FileKind::onnx},
                                 {timeline, FileKind::timeline},
                                 {predictions, FileKind::predictions},
                                 {skipped, FileKind::skipped_samples},
                                 {run, FileKind::run_evaluation}};
  for (const Output& output : ours) {
    CAPTURE(output.file);
    CHECK_NOTHROW(expect_replaceable(output, {}, false));
    for (const Output& other : ours) {
      if (other.file == output.file) continue;
      CAPTURE(other.file);
      CHECK_THAT(refusal({other.file, output.kind}), Contains("exists already") && Contains("--overwrite"));
    }
    CHECK_THAT(refusal({notes, output.kind}), Contains("notes: exists already") && Contains("--overwrite"));
    CHECK_NOTHROW(expect_replaceable({notes, output.kind}, {}, true));
  }
  write_text(notes, "");  // empty, as created by mktemp: nothing is lost
  CHECK_NOTHROW(expect_replaceable({notes, FileKind::evaluation}, {}, false));
  // Files of another kind: reports of another command, and checkpoints.
  CHECK_THAT(refusal({report, FileKind::step_benchmark}), Contains("--overwrite"));
  CHECK_THAT(refusal({data, FileKind::average}), Contains("exists already; give"));
}

TEST_CASE("a command's input is never accepted as its output", "[output_file]") {
  const TemporaryFolder folder;
  const std::filesystem::path data = folder / "data.h5", link = folder / "link.h5", hard = folder / "hard.h5";
  write_data_file(data);
  std::filesystem::create_symlink(data, link);
  std::filesystem::create_hard_link(data, hard);
  for (const bool overwrite : {false, true})
    for (const auto& name : {data, link, hard})
      CHECK_THAT(refusal({name, FileKind::data}, {data}, overwrite), Contains("is an input of this command"));
  // Files in an input folder that were not made by this command.
  write_text(folder / "picture.png", "pixels");
  CHECK_THAT(refusal({folder / "picture.png", FileKind::data}, {folder.path()}, true),
             Contains("is an input of this command"));
  CHECK_NOTHROW(expect_replaceable({data, FileKind::data}, {folder.path()}, false));
}

TEST_CASE("folders and special files are not replaced", "[output_file]") {
  const TemporaryFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal({folder / "pipe", FileKind::evaluation}, {}, true), Contains("not a regular file"));
  CHECK_THAT(refusal({folder.path(), FileKind::evaluation}, {}, true), Contains("is a folder"));
}

TEST_CASE("only reports go to standard output", "[output_file]") {
  CHECK_NOTHROW(expect_replaceable({"-", FileKind::step_benchmark}, {}, false));
  CHECK(refusal({"-", FileKind::timeline}) ==
        "-: the annulus timeline cannot go to standard output; give the name of a file");
  CHECK(refusal({"-", FileKind::run_evaluation}) ==
        "-: the annulus evaluation of a run cannot go to standard output; give the name of a file");
}

TEST_CASE("a claimed folder is new, empty or claimed by an earlier run", "[output_file]") {
  const TemporaryFolder folder;
  const auto claim = [](const std::filesystem::path& name, bool adopt = false) {
    return FolderClaim(name, adopt, "choose another");
  };
  CHECK(claim(folder / "new/run").is_new());
  CHECK_FALSE(claim(folder / "new/run").is_new());
  std::filesystem::create_directory(folder / "foreign");
  { CHECK_FALSE(claim(folder / "foreign").is_new()); }
  std::filesystem::create_directory(folder / "other");
  write_text(folder / "other/config.toml", "mine");
  CHECK_THAT(error_of([&] { claim(folder / "other"); }), Contains("did not write") && Contains("choose another"));
  CHECK_FALSE(std::filesystem::exists(folder / "other/annulus.lock"));
  CHECK_NOTHROW(claim(folder / "other", true));
  // A link in place of the mark is not accepted, and not followed.
  std::filesystem::create_directory(folder / "linked");
  std::filesystem::create_symlink(folder / "victim", folder / "linked/annulus.lock");
  CHECK_THAT(error_of([&] { claim(folder / "linked"); }), Contains("did not write"));
  error_of([&] { claim(folder / "linked", true); });
  CHECK_FALSE(std::filesystem::exists(folder / "victim"));
}

TEST_CASE("a folder has one claim at a time, and the error names its process", "[output_file]") {
  const TemporaryFolder folder;
  {
    const FolderClaim first(folder / "run", false, "choose another");
    const std::string text = error_of([&] { FolderClaim(folder / "run", true, "choose another", "overwrite"); });
    CHECK_THAT(text, Contains("wait for it to end, or choose another") && !Contains("overwrite"));
    CHECK_THAT(text, Contains("another process") && Contains(fmt::format("process {}", getpid())) && Contains("host "));
    write_text(folder / "run/part", "x");
    first.clear();
    CHECK_FALSE(std::filesystem::exists(folder / "run/part"));
    CHECK(std::filesystem::exists(folder / "run/annulus.lock"));
  }
  const FolderClaim second(folder / "run", false, "choose another");
  second.remove();
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("a folder can be claimed while the process that held it removes it", "[output_file]") {
  const TemporaryFolder folder;
  std::atomic<int> claims = 0;
  std::mutex mutex;
  std::string failure;
  const auto claim_often = [&] {
    for (int time = 0; time < 200; ++time) try {
        const FolderClaim claim(folder / "run", false, "choose another");
        ++claims;
        write_text(folder / "run/part", "x");
        claim.remove();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failure = error.what();
      }
  };
  {
    std::vector<std::jthread> threads;
    for (int number = 0; number < 3; ++number) threads.emplace_back(claim_often);
  }
  CHECK(failure == "");
  CHECK(claims == 600);
}

TEST_CASE("a shared claim lasts until all that joined it have ended", "[output_file]") {
  const TemporaryFolder folder;
  std::optional<FolderClaim> first(std::in_place, folder.path(), false, "choose another");
  CHECK_THROWS_AS(FolderClaim::join(folder.path()), Error);
  first->share();
  std::optional<FolderClaim> second(FolderClaim::join(folder.path())), third(FolderClaim::join(folder.path()));
  first.reset();
  CHECK(is_claimed(folder.path()));
  second.reset();
  CHECK(is_claimed(folder.path()));
  third.reset();
  CHECK_FALSE(is_claimed(folder.path()));
  CHECK_NOTHROW(FolderClaim(folder.path(), false, "choose another"));
}

}  // namespace annulus
