#include "src/io/json.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "src/metrics/results.h"
#include "src/weights/safetensors.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

std::string nested(std::size_t depth, const std::string& open = "[", const std::string& close = "]") {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
}

}  // namespace

TEST_CASE("JSON is read up to a depth", "[json]") {
  CHECK(parse_json(nested(kDeepestJson)).is_array());
  CHECK_THROWS_WITH(parse_json(nested(kDeepestJson + 1)), Contains("nested more deeply than the supported 64 levels"));
  for (const std::string& text : {nested(1'000'000), nested(300'000, R"({"a":)", "}"), nested(300'000, "[", ""),
                                  nested(500'000, "[{\"a\":[0],\"b\":")}) {
    CHECK(try_parse_json(text).is_discarded());
    std::istringstream stream(text);
    CHECK(try_parse_json(stream).is_discarded());
    CHECK_THROWS_AS(parse_json(text), nlohmann::json::exception);
  }
  const std::string flat = R"({"a":"\"[[[[", "b":[)" + std::string(200'000, ' ') + "[1],[2]]}";
  CHECK(parse_json(flat)["b"][1][0] == 2);
  CHECK(parse_json(R"(["\\", ")" + std::string(100, '[') + R"("])").size() == 2);
  CHECK(try_parse_json("[1").is_discarded());
}

TEST_CASE("files of deeply nested JSON are refused", "[json]") {
  const test::TemporaryFolder folder;
  const std::string deep = nested(400'000, R"({"a":)", "}");
  std::uint64_t length = deep.size();
  test::write_text(folder / "a.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + deep);
  CHECK_THAT(test::error_of([&] { SafetensorsFile{folder / "a.safetensors"}; }),
             Contains("a.safetensors: not a safetensors file: its header is not a JSON object"));
  test::write_text(folder / "results.json", deep);
  CHECK_THAT(test::error_of([&] { read_json(folder / "results.json"); }), Contains("not a JSON object, or is damaged"));
}

TEST_CASE("members of another type than expected are not read", "[json]") {
  const nlohmann::json json = {{"status", 7}, {"began", nullptr}, {"rate", 0.5}};
  CHECK(member_or<std::string>(json, "status", "none") == "none");
  CHECK(member_or<std::string>(json, "began", "none") == "none");
  CHECK(member_or<std::string>(json, "missing", "none") == "none");
  CHECK(member_or<std::string>(nlohmann::json(3), "status", "none") == "none");
  CHECK(member_or(json, "rate", 1.0) == 0.5);
}

TEST_CASE("results that were edited do not end a resumed run", "[json]") {
  const test::TemporaryFolder folder;
  test::write_text(folder / "results.json",
                   R"({"began": 3, "epochs": [1, {"epoch": "2"}, {"epoch": 3}], "evaluations": "none"})");
  RunResult result;
  read_earlier_results(folder / "results.json", 2, 10, result);
  CHECK(result.began.empty());
  CHECK(result.earlier_epochs.size() == 1);
  CHECK(result.earlier_evaluations.empty());
}

}  // namespace annulus
