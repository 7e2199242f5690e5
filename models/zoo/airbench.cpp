#include <array>
#include <cmath>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

// Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024, arXiv 2404.00498, section 3.1: a convolution over
// 2x2 pixels, which train --whiten initializes, and three blocks of two convolutions. Layers begin as copies of their
// input as far as they have channels for it (section 3.3), and batch norms have no scale.

namespace annulus {
namespace {

constexpr std::array<std::size_t, 3> kChannels{64, 256, 256};  // each block's
constexpr float kLogitScale = 1.0f / 9;

// As PyTorch's uniformly distributed initial weights have it.
float default_stddev(std::size_t inputs) {
  return std::sqrt(1 / static_cast<float>(3 * inputs));
}

Value gelu(Graph& g, const std::string& name, Value x) {
  return g.add(name, Activation{Activation::Function::gelu}, {x});
}

Value convolution(Graph& g, const std::string& name, Value x, std::size_t channels) {
  const std::size_t inputs = g.shape(x, 1)[1];
  return g.add(name,
               Convolution{.channels = channels,
                           .kernel = 3,
                           .padding = 1,
                           .bias = false,
                           .stddev = default_stddev(9 * inputs),
                           .begins_as_copy = true},
               {x});
}

Value norm_gelu(Graph& g, const std::string& block, const char* number, Value x) {
  x = g.add({.name = block + ".norm" + number,
             .operation = BatchNorm{.epsilon = 1e-12f, .momentum = 0.4f},
             .inputs = {x},
             .frozen = {"weight"}});
  return gelu(g, block + ".gelu" + number, x);
}

Value block(Graph& g, const std::string& name, Value x, std::size_t channels) {
  x = convolution(g, name + ".conv1", x, channels);
  x = g.add(name + ".pool", MaxPool{.kernel = 2, .stride = 2}, {x});
  x = norm_gelu(g, name, "1", x);
  x = convolution(g, name + ".conv2", x, channels);
  return norm_gelu(g, name, "2", x);
}

}  // namespace

Graph airbench94(const Task& task) {
  constexpr std::size_t kPatch = 2;
  Graph g(task.image);
  Value x = image_input(g, task);
  const std::size_t patch = kPatch * kPatch * task.image.channels;
  x = g.add("whiten", Convolution{.channels = 2 * patch, .kernel = kPatch, .stddev = default_stddev(patch)}, {x});
  x = gelu(g, "gelu", x);
  for (std::size_t i = 0; i < kChannels.size(); ++i) x = block(g, "block" + std::to_string(i + 1), x, kChannels[i]);
  x = g.add("pool", MaxPool{.kernel = 3, .stride = 3}, {x});
  const std::size_t features = elements(g.shape(x, 1));
  x = g.add("head", Dense{.units = task.classes, .stddev = default_stddev(features), .bias = false}, {x});
  x = g.add("scale", Activation{Activation::Function::linear, kLogitScale}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
