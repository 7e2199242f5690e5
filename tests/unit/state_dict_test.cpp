#include "models/graph/state_dict.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "models/rewrites/freeze.h"
#include "models/zoo/zoo.h"
#include "src/io/hash.h"

namespace annulus {

TEST_CASE("names and shapes are those of torchvision's state_dict", "[state_dict]") {
  // Of torchvision 0.29: the number of tensors, and the XXH3 hash of sorted lines of names and shapes, such as
  // "bn1.num_batches_tracked " and "conv1.weight 64x3x7x7". The smaller vision transformers are
  // its VisionTransformer(224, 16, 12, 6, 384, 1536) and (32, 4, 6, 3, 192, 768, num_classes=10).
  struct {
    const char* model;
    std::size_t tensors;
    std::uint64_t hash;
  } const theirs[] = {{"resnet18", 122, 0xbfe21010a2a86b1a},    {"resnet34", 218, 0x928111028617e1e2},
                      {"resnet50", 320, 0x99e3c26fcc768c1},     {"resnet101", 626, 0xd3705f409786c522},
                      {"resnet152", 932, 0xe6bc0de21f2f85bb},   {"alexnet", 16, 0x6782d7cd331d8b7d},
                      {"vgg16", 32, 0x9131ea504d94423c},        {"inception_v3", 566, 0xa2fa9be755bd2a6},
                      {"densenet121", 727, 0x1632043d34290599}, {"mobilenet_v3_large", 312, 0xd9c480498d984b83},
                      {"vit_b_16", 152, 0x67529b8f65836bff},    {"vit_s_16", 152, 0xddf1d20f7e1c5b54},
                      {"vit_tiny", 80, 0xe954f15a782c13a1}};
  for (const auto& [model, tensors, hash] : theirs) {
    CAPTURE(model);
    const ZooEntry& entry = zoo_entry(model);
    std::vector<std::string> lines;
    for (const StateTensor& tensor : state_dict(entry.make(entry.task())))
      lines.push_back(fmt::format("{} {}\n", tensor.name, to_string(tensor.shape)));
    CHECK(lines.size() == tensors);
    std::ranges::sort(lines);
    Hash found;
    for (const std::string& line : lines) found.add(std::span<const char>(line));
    CHECK(found.value() == hash);
  }
}

TEST_CASE("parameters may have names of their own, and constants are not in the state_dict", "[state_dict]") {
  Graph graph(ImageShape{8, 8, 3});
  Value value = graph.add("input", ImageInput{{0, 0, 0}, {1, 1, 1}}, {Graph::kImages});
  value = graph.add({.name = "mid",
                     .operation = Convolution{.channels = 4, .kernel = {3, 3}, .bias = false},
                     .inputs = {value},
                     .names = {{"weight", "mid.k"}}});
  value = graph.add({.name = "bn",
                     .operation = BatchNorm{},
                     .inputs = {value},
                     .frozen = {"weight", "bias"},
                     .constants = {"weight", "bias"}});
  graph.add({.name = "other",
             .operation = BatchNorm{},
             .inputs = {value},
             .names = {{"weight", "gamma"}, {"running_mean", "mean"}, {"running_var", "var"}}});
  std::vector<std::string> names;
  for (const StateTensor& tensor : state_dict(graph)) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"mid.k", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked",
                                          "gamma", "other.bias", "mean", "var"});
  CHECK(frozen_names(freeze(graph, {"mid.k"})) == std::vector<std::string>{"bn.weight", "bn.bias", "mid.k"});
}

TEST_CASE("the head is the last layer with weights", "[state_dict]") {
  for (const auto& [model, head] : {std::pair{"mlp", "fc3"},
                                    {"resnet20", "fc"},
                                    {"vgg16", "classifier.6"},
                                    {"gpt-tiny", "wte"},
                                    {"vit_tiny", "heads.head"}}) {
    const ZooEntry& entry = zoo_entry(model);
    const Graph graph = entry.make(entry.task());
    CHECK(graph.nodes()[head_of(graph)].name == head);
  }
}

}  // namespace annulus
