#include <fcntl.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/io/file_descriptor.h"
#include "src/metrics/csv_writer.h"
#include "src/metrics/growing_file.h"
#include "src/metrics/json_lines_writer.h"
#include "src/metrics/metrics_files.h"
#include "src/metrics/prometheus_writer.h"
#include "src/metrics/tensorboard_writer.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using test::read_text;

MetricsRecord record(std::uint64_t step, double loss, std::string_view kind = "train") {
  MetricsRecord made{kind, step, 0.5, 1000.25};
  made.values[MetricsRecord::loss] = loss;
  return made;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// The steps of a file of JSON lines.
std::vector<std::uint64_t> steps(const std::filesystem::path& file) {
  std::ifstream lines(file);
  std::vector<std::uint64_t> found;
  for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line)["step"]);
  return found;
}

}  // namespace

TEST_CASE("TFRecords hold the length, the data and masked CRC32Cs of both", "[metrics]") {
  // The CRC32C of "123456789" is e3069283 (RFC 3720 and every catalogue of checksums).
  CHECK(hex(tf_record("123456789")) == "090000000000000037f97139313233343536373839e5b08ac7");
  CHECK(hex(tf_record("")) == "000000000000000029039807d8ea82a2");
}

TEST_CASE("Prometheus reads the latest record of each kind", "[metrics]") {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a\"b");
  const auto file = folder / "a\"b/metrics.prom";
  PrometheusWriter writer(file);
  writer.write(record(10, 0.75));
  writer.write(record(10, 0.5, "test"));
  writer.write(record(20, 0.25));
  const std::string run = folder.path().string() + "/a\\\"b";
  const auto gauge = [&](const std::string& name, const std::string& test, const std::string& train) {
    return "# TYPE annulus_" + name + " gauge\nannulus_" + name + "{run=\"" + run + "\",kind=\"test\"} " + test +
           "\nannulus_" + name + "{run=\"" + run + "\",kind=\"train\"} " + train + "\n";
  };
  CHECK(read_text(file) ==
        "# HELP annulus_step Step of the latest record.\n" + gauge("step", "10", "20") +
            "# HELP annulus_epoch Epochs done of the latest record.\n" + gauge("epoch", "0.5", "0.5") +
            "# HELP annulus_record_timestamp_seconds Unix time of the latest record.\n" +
            gauge("record_timestamp_seconds", "1000.25", "1000.25") +
            "# HELP annulus_loss The value loss of the latest record.\n" + gauge("loss", "0.5", "0.25"));
  CHECK(!std::filesystem::exists(file.string() + ".partial"));
  std::filesystem::remove_all(folder / "a\"b");
  CHECK_THAT(test::error_of([&] { writer.write(record(30, 1)); }), Contains("metrics.prom: cannot write"));
}

TEST_CASE("appending to a link is refused", "[metrics]") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "victim", "precious\n");
  std::filesystem::create_symlink(folder / "victim", folder / "a");
  CHECK_THAT(test::error_of([&] { GrowingFile(folder / "a").append("x\n"); }), Contains("symbolic link"));
  CHECK(read_text(folder / "victim") == "precious\n");
}

TEST_CASE("a pipe in place of a metrics file is refused, with and without a reader", "[metrics]") {
  const test::TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "a").c_str(), 0600) == 0);
  const auto refused = Contains("a pipe or device, not a regular file");
  CHECK_THAT(test::error_of([&] { GrowingFile(folder / "a").append("x\n"); }), refused);
  CHECK_THAT(test::error_of([&] { CsvWriter(folder / "a", 0); }), refused);
  const FileDescriptor reader(::open((folder / "a").c_str(), O_RDONLY | O_NONBLOCK));
  CHECK_THAT(test::error_of([&] { GrowingFile(folder / "a").append("x\n"); }), refused);
}

TEST_CASE("an append that fails on a full disk is rolled back", "[metrics]") {
  const test::TemporaryFolder folder;
  GrowingFile file(folder / "a");
  file.append("first\n");
  {
    const test::FileSizeLimit limit(10);
    CHECK_THAT(test::error_of([&] { file.append("second\n"); }), Contains("/a: cannot write: File too large"));
    CHECK(read_text(folder / "a") == "first\n");
  }
  file.append("third\n");
  CHECK(read_text(folder / "a") == "first\nthird\n");
  CHECK(GrowingFile(folder / "a").size() == 12);
}

TEST_CASE("lines of later steps and incomplete lines are truncated", "[metrics]") {
  const test::TemporaryFolder folder;
  const auto kept = [&](const std::string& text, std::uint64_t step) {
    test::write_text(folder / "a", text);
    GrowingFile file(folder / "a");
    keep_lines_until(file, step, [](std::string_view line) -> std::optional<std::uint64_t> {
      return line.size() == 1 ? std::optional<std::uint64_t>(line[0] - '0') : std::nullopt;
    });
    CHECK(file.size() == std::filesystem::file_size(folder / "a"));
    return read_text(folder / "a");
  };
  CHECK(kept("", 3).empty());
  CHECK(kept("1\n2\n2\n4\n", 2) == "1\n2\n2\n");
  CHECK(kept("1\n2\n", 9) == "1\n2\n");
  CHECK(kept("1\n2\n", 0).empty());
  CHECK(kept("1\n2", 9) == "1\n");
  CHECK(kept("1\nno\n2\n", 9) == "1\n");
}

TEST_CASE("JSON lines hold the available metrics, and continue after the resumed step", "[metrics]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    JsonLinesWriter writer(file, 0);
    MetricsRecord first = record(50, 0.75);
    first.values.back() = 0.125;
    writer.write(first);
    writer.write(record(100, std::numeric_limits<double>::infinity()));
    writer.write(record(100, 0.5, "test"));
    writer.write(record(150, 0.25));
  }
  const std::string text = read_text(file);
  CHECK(text.substr(0, text.find('\n')) ==
        R"({"step":50,"kind":"train","epoch":0.5,"time":1000.25,"loss":0.75,"rest_seconds":0.125})");
  CHECK_THAT(text, Contains(R"("loss":null)"));
  JsonLinesWriter(file, 100).write(record(150, 0.5));
  CHECK(steps(file) == std::vector<std::uint64_t>{50, 100, 100, 150});
  CHECK_THAT(read_text(file), Contains(R"("step":150,"kind":"train","epoch":0.5,"time":1000.25,"loss":0.5})"));
  JsonLinesWriter(file, 0).write(record(1, 0.5));  // starts a new file
  CHECK(steps(file) == std::vector<std::uint64_t>{1});
}

TEST_CASE("a CSV file has one header, and empty fields for missing values", "[metrics]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "metrics.csv";
  const std::string header =
      "step,kind,epoch,time,loss,accuracy,top5_accuracy,f1,recall,mae,perplexity,bits_per_byte,learning_rate,"
      "images_per_second,tokens_per_second,mfu,gradient_norm,noise_scale,lost_rank,recovery_seconds,repeated_steps,"
      "staleness,step_"
      "seconds,"
      "input_seconds,compute_seconds,exposed_communication_seconds,waiting_for_slower_ranks_seconds,optimizer_seconds,"
      "rest_seconds\n";
  const std::string row = "50,train,0.5,1000.25,0.75,,,,,,,,,,,,,,,,,,,,,,,,\n";
  CsvWriter(file, 0).write(record(50, 0.75));
  CHECK(read_text(file) == header + row);
  CsvWriter(file, 50).write(record(100, 0.5));
  CHECK(read_text(file) == header + row + "100,train,0.5,1000.25,0.5,,,,,,,,,,,,,,,,,,,,,,,,\n");
  CsvWriter(file, 70).write(record(70, 0.5, "test"));
  CHECK(read_text(file) == header + row + "70,test,0.5,1000.25,0.5,,,,,,,,,,,,,,,,,,,,,,,,\n");
  CsvWriter again(file, 0);
  CHECK(read_text(file) == header);
  test::write_text(file, "step,kind,other columns\n50,train,1\n");
  CsvWriter other(file, 50);
  CHECK(read_text(file) == header);
  CHECK(read_text(folder / "metrics.csv.old") == "step,kind,other columns\n50,train,1\n");
}

TEST_CASE("each start writes its own event file, whose name sorts after earlier ones", "[metrics]") {
  const test::TemporaryFolder folder;
  TensorBoardWriter(folder / "t", 0).write(record(1, 0.5));
  TensorBoardWriter(folder / "t", 1).write(record(2, 0));
  const auto second = read_text(folder / "t" / "events.out.tfevents.000002");
  CHECK_THAT(second, Contains("brain.Event:2") && Contains("train/loss"));
  CHECK(read_text(folder / "t" / "events.out.tfevents.000001").size() == second.size());  // a loss of 0 is written too
}

TEST_CASE("a metrics file that cannot be written is reported once, and training continues", "[metrics]") {
  const test::TemporaryFolder folder;
  std::vector<std::string> logged;
  const auto log = [&logged](const std::string& line) { logged.push_back(line); };
  std::filesystem::create_directory(folder / "metrics.jsonl");
  test::write_text(folder / "tensorboard", "no folder");
  MetricsFiles files({"tensorboard", "csv", "jsonl"}, folder.path(), 0, log);
  REQUIRE(logged.size() == 2);
  CHECK_THAT(logged[0], Contains("metrics.jsonl: cannot write: Is a directory") && Contains("training continues"));
  CHECK_THAT(logged[1], Contains("tensorboard: cannot create this folder"));
  files.write(record(1, 0.5));
  {
    const test::FileSizeLimit limit(std::filesystem::file_size(folder / "metrics.csv") + 5);
    files.write(record(2, 0.5));
    files.write(record(3, 0.5));
  }
  REQUIRE(logged.size() == 3);
  CHECK_THAT(logged[2], Contains("metrics.csv: cannot write: File too large"));
  files.write(record(4, 0.5));
  CHECK_THAT(read_text(folder / "metrics.csv"), Contains("\n1,train") && Contains("\n4,train") && !Contains("\n2,"));
}

}  // namespace annulus
