#include "models/zoo/zoo.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "models/zoo/architectures.h"

namespace annulus {
namespace {

constexpr std::array<const char*, 4> kLosses{"softmax", "binary", "mse", "masked"};  // indexed by Loss

ZooEntry gpt_entry(std::string name, std::string description, const GptSize& size, const TokenShape& tokens) {
  const auto make = [size](const Task& task) { return gpt(task, size); };
  return {std::move(name), std::move(description), {}, 0, make, tokens, size};
}

using SizeOption = std::pair<std::string_view, std::size_t GptSize::*>;

constexpr std::array<SizeOption, 4> kSizeOptions{{{"--layers", &GptSize::layers},
                                                  {"--width", &GptSize::width},
                                                  {"--heads", &GptSize::heads},
                                                  {"--context", &GptSize::context}}};
constexpr std::size_t kLargestSize = 1 << 20;

// Reads "--layers 4 --width 128".
GptSize parse_size(const std::string& model, const std::string& options, GptSize size) {
  std::istringstream words(options);
  for (std::string name, text; words >> name;) {
    text.clear();
    words >> text;
    const auto option = std::ranges::find(kSizeOptions, name, &SizeOption::first);
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (option == kSizeOptions.end() || error != std::errc() || end != text.data() + text.size() || value == 0 ||
        value > kLargestSize)
      fail("{}: '{} {}' is not a size such as --layers 4 (others: --width, --heads, --context)", model, name, text);
    size.*option->second = value;
  }
  if (size.width % size.heads != 0)
    fail("{}: a width of {} is not divisible by {} heads: choose another --width or --heads", model, size.width,
         size.heads);
  return size;
}

ZooEntry resized(const ZooEntry& entry, const std::string& options) {
  if (!entry.size) fail("{} has a fixed size: --layers, --width, --heads and --context are for GPTs", entry.name);
  const GptSize size = parse_size(entry.name, options, *entry.size);
  std::string name = entry.name;
  for (const auto& [option, member] : kSizeOptions)
    if (size.*member != (*entry.size).*member) name += fmt::format(" {} {}", option, size.*member);
  const bool keeps_context = size.context == entry.size->context;
  ZooEntry made =
      gpt_entry(name, fmt::format("a GPT of {} blocks, {} heads, {} wide", size.layers, size.heads, size.width), size,
                {keeps_context ? entry.tokens.length : size.context, entry.tokens.vocabulary});
  if (!keeps_context)
    made.make = [size, name](const Task& task) {
      if (task.tokens.length > size.context)
        fail("{}: windows of {} tokens are longer than --context {}: choose another --length or --context", name,
             task.tokens.length, size.context);
      return gpt(task, size);
    };
  return made;
}

// Returns the side of the smallest square images that a model accepts, found by trying; nothing if all sizes up to the
// default are rejected.
std::optional<std::size_t> least_side(const ZooEntry& entry, Task task) {
  for (std::size_t side = 1; side <= entry.image.height; ++side) {
    task.image.height = task.image.width = side;
    try {
      entry.make(task);
      return side;
    } catch (const Error&) {  // too small
    }
  }
  return std::nullopt;
}

}  // namespace

Task neutral_task(const ImageShape& image, std::size_t classes) {
  return {image, std::vector<float>(image.channels, 0.5f), std::vector<float>(image.channels, 0.25f), classes};
}

Task token_task(const TokenShape& tokens) {
  return {.image = {}, .mean = {}, .stddev = {}, .classes = 0, .labels = LabelKind::tokens, .tokens = tokens};
}

Task ZooEntry::task() const {
  return reads_tokens() ? token_task(tokens) : neutral_task(image, classes);
}

const std::vector<ZooEntry>& zoo() {
  static const ImageShape digits{28, 28, 1}, small{32, 32, 3}, photos{224, 224, 3}, large{299, 299, 3};
  static const std::vector<ZooEntry> entries{
      {"mlp", "784-256-128-10 for 28x28 images: two hidden dense layers", digits, 10, mlp},
      {"lenet", "LeNet-5 with ReLU and max pooling (LeCun et al., 1998)", digits, 10, lenet},
      {"cnn", "two 3x3 convolutions and two dense layers", digits, 10, cnn},
      {"resnet20", "ResNet-20 for small images (He et al., 2015, section 4.2), projection shortcuts", small, 10,
       resnet20},
      {"resnet56", "ResNet-56, likewise", small, 10, resnet56},
      {"airbench94",
       "three blocks of two 3x3 convolutions after whitened patches (Jordan, 2024), for CIFAR-10 in minutes", small, 10,
       airbench94},
      {"resnet18", "ResNet-18 (He et al., 2015)", photos, 1000, resnet18},
      {"resnet34", "ResNet-34", photos, 1000, resnet34},
      {"resnet50", "ResNet-50, v1.5: the stride is in the 3x3 convolutions", photos, 1000, resnet50},
      {"resnet101", "ResNet-101, v1.5", photos, 1000, resnet101},
      {"resnet152", "ResNet-152, v1.5", photos, 1000, resnet152},
      {"alexnet", "AlexNet (Krizhevsky, \"One weird trick\", 2014)", photos, 1000, alexnet},
      {"vgg16", "VGG-16 (Simonyan and Zisserman, 2014), without batch norm", photos, 1000, vgg16},
      {"inception_v3", "Inception V3 (Szegedy et al., 2015), without the auxiliary classifier", large, 1000,
       inception_v3},
      {"densenet121", "DenseNet-121 (Huang et al., 2016)", photos, 1000, densenet121},
      {"mobilenet_v3_large", "MobileNetV3-Large (Howard et al., 2019)", photos, 1000, mobilenet_v3_large},
      {"vit_tiny", "vision transformer for small images (Dosovitskiy et al., 2020): 6 layers, 4x4 patches", small, 10,
       vit_tiny},
      {"vit_s_16", "ViT-S/16 (Touvron et al., 2020), without distillation", photos, 1000, vit_s_16},
      {"vit_b_16", "ViT-B/16 (Dosovitskiy et al., 2020)", photos, 1000, vit_b_16},
      gpt_entry("gpt2", "GPT-2, 124M parameters (Radford et al., 2019)", {12, 768, 12, 1024}, {1024, 50257}),
      gpt_entry("gpt2-medium", "GPT-2, 355M parameters", {24, 1024, 16, 1024}, {1024, 50257}),
      gpt_entry("nanogpt", "a GPT of 6 blocks, 6 heads, 384 wide, as nanoGPT's for characters", {6, 384, 6},
                {256, 257}),
      gpt_entry("nanogpt-cpu", "a GPT of 4 blocks, 4 heads, 128 wide, as nanoGPT's for CPUs", {4, 128, 4}, {64, 257}),
      gpt_entry("gpt-tiny", "a GPT of 2 blocks, 2 heads, 64 wide", {2, 64, 2}, {64, 257}),
  };
  return entries;
}

ZooEntry zoo_entry(const std::string& name) {
  const std::size_t space = name.find(' ');
  const auto entry = std::ranges::find(zoo(), name.substr(0, space), &ZooEntry::name);
  if (entry != zoo().end()) return space == std::string::npos ? *entry : resized(*entry, name.substr(space));
  std::vector<std::string> names;
  std::ranges::transform(zoo(), std::back_inserter(names), &ZooEntry::name);
  fail("unknown model \"{}\": use one of {}", name, fmt::join(names, ", "));
}

std::string to_string(Loss loss) {
  return kLosses[static_cast<std::size_t>(loss)];
}

Loss parse_loss(const std::string& name, LabelKind labels) {
  using enum Loss;
  static const std::map<LabelKind, std::vector<Loss>> fitting{{LabelKind::one_class, {softmax, binary}},
                                                              {LabelKind::several_classes, {binary}},
                                                              {LabelKind::values, {mse}},
                                                              {LabelKind::tokens, {softmax, masked}}};
  const std::vector<Loss>& losses = fitting.at(labels);
  if (name == "auto") return losses.front();
  const auto found = std::ranges::find(losses, name, [](Loss loss) { return to_string(loss); });
  if (found != losses.end()) return *found;
  std::vector<std::string> names;
  std::ranges::transform(losses, std::back_inserter(names), [](Loss loss) { return to_string(loss); });
  fail("--loss {} is not for these labels, {}: use {}", name, description(labels), fmt::join(names, " or "));
}

Graph make_model(const std::string& name, const Task& task) {
  const ZooEntry entry = zoo_entry(name);
  if (entry.reads_tokens() != task.reads_tokens())
    fail("{} is for {}, and the data is {}", name, entry.reads_tokens() ? "text" : "images",
         task.reads_tokens() ? "text" : "images");
  if (entry.reads_tokens() && task.tokens.prediction != Prediction::next)
    fail("{} predicts the next token only: for {} use the network of an ONNX file", name,
         task.tokens.prediction == Prediction::masked ? "--loss masked" : "texts with labels");
  if (entry.reads_tokens()) return entry.make(task);
  try {
    return entry.make(task);
  } catch (const Error& error) {
    const auto least = least_side(entry, task);
    if (!least || std::min(task.image.height, task.image.width) >= *least) throw;
    fail("{} (minimum image size of {}: {}x{})", error.what(), name, *least, *least);
  }
}

}  // namespace annulus
