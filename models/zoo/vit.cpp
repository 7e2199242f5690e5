#include <fmt/format.h>

#include <cmath>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

// Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", ICLR 2021, with a
// class token. Names, epsilons and initialization are torchvision's; but torchvision's uniform distributions are normal
// here, with the same std, and the head begins with a std of 0.02 as in DeiT (Touvron et al., "Training data-efficient
// image transformers & distillation through attention", ICML 2021) instead of zeros.

namespace annulus {
namespace {

struct VisionTransformer {
  std::size_t patch, layers, heads, width, hidden;  // hidden: units in the dense layers between two widths
};

constexpr float kEpsilon = 1e-6f, kVitStddev = 0.02f;

// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
Linear glorot(std::size_t units, std::size_t inputs) {
  return {.units = units, .stddev = std::sqrt(2 / static_cast<float>(units + inputs))};
}

// A parameter that is the same for all images, without weight decay.
Value learned(Graph& g, const std::string& name, const Shape& shape, float stddev) {
  return g.add(name, Learned{.shape = shape, .role = Role::offset, .parameter = "", .stddev = stddev}, {});
}

// Returns the tokens: a class token, and the image's patches. Pixels beyond the last whole patch are not used.
Value tokens(Graph& g, const VisionTransformer& vit, Value images) {
  Convolution patches{.channels = vit.width, .kernel = vit.patch, .stride = vit.patch};
  patches.stddev = 1 / std::sqrt(static_cast<float>(g.shape(images, 1)[1] * vit.patch * vit.patch));
  Value x = g.add("conv_proj", patches, {images});
  const Shape shape = g.shape(x, 1);
  const std::size_t count = shape[2] * shape[3];
  x = g.add("conv_proj.reshape", Reshape{{Reshape::kInferred, vit.width, count}}, {x});
  x = g.add("conv_proj.transpose", Transpose{{0, 2, 1}}, {x});
  Value token = learned(g, "class_token", {1, 1, vit.width}, 0);
  token = g.add("class_token.expand", Expand{{Expand::kBatch, 1, vit.width}}, {token, Graph::kImages});
  x = g.add("concat", Concat{1}, {token, x});
  const Value positions = learned(g, "encoder.pos_embedding", {1, count + 1, vit.width}, kVitStddev);
  return g.add("encoder.add", Arithmetic{Arithmetic::Operator::sum}, {x, positions});
}

Value encoder_layer(Graph& g, const VisionTransformer& vit, const std::string& name, Value x) {
  const LayerNorm norm{.axis = 2, .epsilon = kEpsilon};
  Value y = g.add(name + ".ln_1", norm, {x});
  y = g.add(name + ".self_attention.in_proj_", glorot(3 * vit.width, vit.width), {y});
  y = g.add(name + ".self_attention", Attention{.heads = vit.heads}, {y});
  const float uniform = 1 / std::sqrt(3 * static_cast<float>(vit.width));  // within 1 / sqrt(width)
  y = g.add(name + ".self_attention.out_proj", Linear{.units = vit.width, .stddev = uniform}, {y});
  x = g.add(name + ".add_1", Add{}, {x, y});
  y = g.add(name + ".ln_2", norm, {x});
  y = g.add(name + ".mlp.0", glorot(vit.hidden, vit.width), {y});
  y = g.add(name + ".mlp.1", Activation{Activation::Function::gelu}, {y});
  y = g.add(name + ".mlp.3", glorot(vit.width, vit.hidden), {y});
  return g.add(name + ".add_2", Add{}, {x, y});
}

// Only the class token's output is read. Each token is normalized separately, so the others are removed before.
Graph vision_transformer(const Task& task, const VisionTransformer& vit) {
  Graph g(task.image);
  Value x = tokens(g, vit, image_input(g, task));
  for (std::size_t layer = 0; layer < vit.layers; ++layer)
    x = encoder_layer(g, vit, fmt::format("encoder.layers.encoder_layer_{}", layer), x);
  x = g.add("slice", Slice{.axis = 1, .begin = 0, .size = 1}, {x});
  x = g.add("flatten", Reshape{{Reshape::kInferred, vit.width}}, {x});
  x = g.add("encoder.ln", LayerNorm{.axis = 1, .epsilon = kEpsilon}, {x});
  x = g.add("heads.head", Dense{.units = task.classes, .stddev = kVitStddev}, {x});
  return with_loss(g, task, x);
}

}  // namespace

Graph vit_b_16(const Task& task) {
  return vision_transformer(task, {.patch = 16, .layers = 12, .heads = 12, .width = 768, .hidden = 3072});
}

Graph vit_s_16(const Task& task) {
  return vision_transformer(task, {.patch = 16, .layers = 12, .heads = 6, .width = 384, .hidden = 1536});
}

Graph vit_tiny(const Task& task) {
  return vision_transformer(task, {.patch = 4, .layers = 6, .heads = 3, .width = 192, .hidden = 768});
}

}  // namespace annulus
