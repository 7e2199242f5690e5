#include "src/weights/weight_files.h"

#include <catch2/catch.hpp>

#include "src/train/weight_names.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

void write_tensor(const std::filesystem::path& file, const std::string& name, const std::vector<float>& values) {
  write_safetensors(file, {{name, {values.size()}, std::span(values)}}, {});
}

std::string error_with(const std::string& name, const std::string& content) {
  const test::TemporaryFolder folder;
  test::write_text(folder / name, content);
  const std::string text = test::error_of([&] { WeightFiles{folder / name}; });
  CHECK_THAT(text, Contains(name + ": "));
  return text;
}

std::string found_as(const WeightNames& names, const std::string& name) {
  const auto found = names.stored.find(name);
  return found == names.stored.end() ? "" : found->second;
}

}  // namespace

TEST_CASE("files of other kinds are named, with what to do", "[weight_files]") {
  using namespace std::string_literals;
  CHECK_THAT(error_with("a.safetensors", ""), Contains("empty (0 bytes)"));
  CHECK_THAT(error_with("a.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7\nsize 9\n"),
             Contains("git lfs pull"));
  CHECK_THAT(error_with("a.safetensors", "\n <!DOCTYPE html><html>"), Contains("an HTML page"));
  CHECK_THAT(error_with("a.pt", "PK\3\4\0\0\10\10"s + "archive/data.pkl"),
             Contains("torch.load(") && Contains("a.safetensors')"));
  CHECK_THAT(error_with("a.pth", "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19."s), Contains("torch.load("));
  CHECK_THAT(error_with("a.npz", "PK\3\4\24\0\0\0"s + "fc.weight.npy"), Contains("numpy.load("));
  CHECK_THAT(error_with("a.bin", "something else"), Contains("not a safetensors file"));
  CHECK_THAT(error_with("a.json", "{\"model_type\": \"resnet\"}"), Contains("no JSON object with a weight_map"));
  CHECK_THAT(error_with("a.json", R"({"weight_map": {"a": "../a.safetensors"}})"), Contains("not the name of a file"));
  CHECK_THAT(error_with("model-00002-of-00003.safetensors", "x"), Contains("one of 3 files"));
}

TEST_CASE("an index of several files", "[weight_files]") {
  const test::TemporaryFolder folder;
  write_tensor(folder / "1.safetensors", "a", {1, 2});
  const std::string index = R"({"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})";
  test::write_text(folder / "model.safetensors.index.json", index);
  const auto open = [&] { return WeightFiles(folder / "model.safetensors.index.json"); };
  CHECK_THAT(test::error_of(open), Contains("2.safetensors is missing beside it"));
  write_tensor(folder / "2.safetensors", "c", {3});
  CHECK_THAT(test::error_of(open), Contains("2.safetensors: tensor b is missing"));
  write_tensor(folder / "2.safetensors", "b", {3, 4, 5});
  const WeightFiles files = open();
  CHECK(files.shapes().at("b") == Shape{3});
  CHECK(files.read("a") == std::vector<float>{1, 2});
  CHECK(files.read("b") == std::vector<float>{3, 4, 5});
}

TEST_CASE("what wrappers add to names is removed", "[weight_files]") {
  const Names network{"conv1.weight", "layer1.0.conv1.weight", "fc.weight", "fc.bias"};
  for (const std::string prefix : {"module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module.model."}) {
    Names file{"epoch"};
    for (const std::string& name : network) file.push_back(prefix + name);
    const WeightNames names = match_names(file, network);
    CHECK(names.added == prefix);
    for (const std::string& name : network) CHECK(found_as(names, name) == prefix + name);
    CHECK(found_as(names, "epoch") == "epoch");
  }
  const WeightNames inside =
      match_names({"conv1.weight", "layer1._orig_mod.0.conv1.weight", "fc.weight", "fc.bias"}, network);
  CHECK(found_as(inside, "layer1.0.conv1.weight") == "layer1._orig_mod.0.conv1.weight");
  CHECK(match_names(network, network).added.empty());
  const Names twice{"module.fc.weight", "module.fc.bias", "fc.weight", "fc.bias"};
  CHECK(found_as(match_names(twice, network), "fc.weight") == "fc.weight");
  const Names other{"layer1.0.conv1.weight", "layer2.0.conv1.weight"};
  CHECK(found_as(match_names(other, network), "layer2.0.conv1.weight") == "layer2.0.conv1.weight");
}

}  // namespace annulus
