#include "src/weights/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "src/io/output_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using test::TemporaryFolder;

std::string length_of(std::uint64_t bytes) {
  std::string text(sizeof bytes, '\0');
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text;
}

// A file with this header and data.
std::filesystem::path write(const TemporaryFolder& folder, const std::string& header, const std::string& data) {
  test::write_text(folder / "weights.safetensors", length_of(header.size()) + header + data);
  return folder / "weights.safetensors";
}

std::string error_of_opening(const std::string& header, const std::string& data = "") {
  const TemporaryFolder folder;
  return test::error_of([&] { SafetensorsFile(write(folder, header, data)); });
}

// The header of a tensor "w".
std::string header(const std::string& type, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}}}})", type, shape, offsets);
}

// The elements of the only tensor of a file.
std::vector<float> elements_of(const std::string& type, const std::string& shape, const std::string& data) {
  const TemporaryFolder folder;
  const SafetensorsFile file(write(folder, header(type, shape, fmt::format("0,{}", data.size())), data));
  return file.read(file.tensors().at(0));
}

std::string error_of_elements(const std::string& type, const std::string& data) {
  return test::error_of([&] { elements_of(type, "1", data); });
}

}  // namespace

TEST_CASE("a safetensors file has the bytes that its own library writes", "[safetensors]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "weights.safetensors";
  const std::vector<float> two{1, 2}, one{3};
  const std::vector<std::int64_t> count{5};
  const std::uint64_t bytes = write_safetensors(
      path, {{"b", {2}, std::span(two)}, {"n", {}, std::span(count)}, {"a", {1, 1}, std::span(one)}}, {{"model", "m"}});
  const std::string expected =
      R"({"__metadata__":{"format":"pt","producer":"annulus","model":"m"},"n":{"dtype":"I64","shape":[],)"
      R"("data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}    )";
  REQUIRE(expected.size() == 0xe8);
  const std::string data("\5\0\0\0\0\0\0\0\0\0@@\0\0\x80?\0\0\0@", 20);
  CHECK(test::read_text(path) == length_of(0xe8) + expected + data);
  CHECK(bytes == std::filesystem::file_size(path));
  CHECK_NOTHROW(expect_replaceable({path, FileKind::weights}, {}, false));

  const SafetensorsFile file(path);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "n");
  CHECK(file.tensors()[0].shape.empty());
  CHECK(file.tensors()[1].shape == Shape{1, 1});
  CHECK(file.read(file.tensors()[1]) == one);
  CHECK(file.read(file.tensors()[2]) == two);
  CHECK_THAT(test::error_of([&] { file.read(file.tensors()[0]); }),
             EndsWith("tensor n: elements of type I64; weights must be F16, BF16, F32 or F64"));
}

TEST_CASE("floating-point elements of any width are read as float32", "[safetensors]") {
  using namespace std::string_literals;
  CHECK(elements_of("F32", "2", "\0\0\x80\x3f\0\0\x20\xc1"s) == std::vector<float>{1, -10});
  CHECK(elements_of("F64", "1", "\0\0\0\0\0\0\x04\xc0"s) == std::vector<float>{-2.5});
  CHECK(elements_of("F16", "1,3", "\0\x3c\0\xc0\1\0"s) == std::vector<float>{1, -2, 0x1p-24f});
  CHECK(elements_of("BF16", "2", "\x80\x3f\x49\x40"s) == std::vector<float>{1, 3.140625});
  CHECK(elements_of("F32", "", "\0\0\x80\x3f"s) == std::vector<float>{1});
  CHECK(elements_of("F32", "3,0", "").empty());
}

TEST_CASE("values that are not finite are refused, naming the tensor", "[safetensors]") {
  using namespace std::string_literals;
  const auto refused = EndsWith("weights.safetensors: tensor w has values that are not finite in float32");
  CHECK_THAT(error_of_elements("F32", "\0\0\xc0\x7f"s), refused);
  CHECK_THAT(error_of_elements("F16", "\0\x7c"s), refused);
  CHECK_THAT(error_of_elements("BF16", "\x80\xff"s), refused);
  CHECK_THAT(error_of_elements("F64", "\0\0\0\0\0\0\0\x7f"s), refused);  // above float32's range
}

TEST_CASE("a damaged safetensors file is refused, naming the problem", "[safetensors]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "short.safetensors";
  const auto error_of_file = [&](const std::string& content) {
    test::write_text(path, content);
    return test::error_of([&] { SafetensorsFile file(path); });
  };
  CHECK_THAT(error_of_file("1234567"), EndsWith("short.safetensors: too short for a safetensors file"));
  CHECK_THAT(error_of_file(length_of(3) + "{}"), EndsWith("truncated: its header should have 3 bytes"));
  CHECK_THAT(error_of_file(length_of(~std::uint64_t{0}) + "{}"), Contains("should have 18446744073709551615 bytes"));
  for (const char* json : {"", "[]", "{\"w\":", "{} {}", "{\"\xff\": {}}"})
    CHECK_THAT(error_of_opening(json), EndsWith("its header is not a JSON object"));

  CHECK_THAT(error_of_opening(R"({"w":1,"w":2})"), EndsWith("its header has 'w' twice"));
  CHECK_THAT(error_of_opening(R"({"w":{"dtype":"F32","dtype":"F64"}})"), EndsWith("its header has 'dtype' twice"));
  for (const char* entry :
       {"1", "{}", R"({"dtype":"F32","shape":[1]})", R"({"dtype":32,"shape":[1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", R"({"dtype":"F32","shape":[1],"data_offsets":[0,"4"]})"})
    CHECK_THAT(error_of_opening(fmt::format(R"({{"w":{}}})", entry), "1234"),
               EndsWith("tensor w: its header needs dtype, shape and two data_offsets"));
  CHECK_THAT(error_of_opening(header("F33", "1", "0,4"), "1234"), EndsWith("tensor w: unknown type 'F33'"));

  CHECK_THAT(error_of_opening(header("F32", "2", "0,4"), "1234"),
             EndsWith("tensor w: 2 elements of type F32 do not fit bytes 0 to 4"));
  CHECK_THAT(error_of_opening(header("F32", "1", "4,0"), "1234"), Contains("do not fit bytes 4 to 0"));
  CHECK_THAT(error_of_opening(header("F32", "4294967296,4294967296", "0,4"), "1234"), Contains("do not fit"));
  CHECK_THAT(error_of_opening(header("F32", "1", "0,4"), "123"), Contains("3 bytes of data, but its tensors have 4"));
  CHECK_THAT(error_of_opening(header("F32", "1", "0,4"), "12345"), Contains("5 bytes of data, but its tensors have 4"));
  CHECK_THAT(error_of_opening(header("F32", "1", "4,8"), "12345678"),
             EndsWith("tensor w begins at byte 4 of the data, but the one before it ends at byte 0"));
  const std::string overlapping = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  CHECK_THAT(error_of_opening(overlapping, "12345678"),
             EndsWith("tensor b begins at byte 4 of the data, but the one before it ends at byte 8"));
}

}  // namespace annulus
