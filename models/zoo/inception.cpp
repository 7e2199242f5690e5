#include <fmt/format.h>

#include "models/zoo/architectures.h"
#include "models/zoo/layers.h"

namespace annulus {
namespace {

// A convolution, then batch norm and ReLU. Initial weights are torchvision's (0.14): a normal distribution with a std
// of 0.1. (torchvision truncates it at -2 and 2, which no value reaches.)
Value unit(Graph& g, const std::string& name, Value x, Convolution convolution) {
  convolution.bias = false;
  convolution.stddev = 0.1f;
  x = g.add(name + ".conv", convolution, {x});
  x = g.add(name + ".bn", BatchNorm{.epsilon = 1e-3f}, {x});
  return g.add(name + ".relu", Relu{}, {x});
}

// Units in sequence, called <name>_1, <name>_2, ...; a single unit is called <name>.
Value branch(Graph& g, const std::string& name, Value x, const std::vector<Convolution>& convolutions) {
  for (std::size_t i = 0; i < convolutions.size(); ++i)
    x = unit(g, convolutions.size() > 1 ? fmt::format("{}_{}", name, i + 1) : name, x, convolutions[i]);
  return x;
}

// Convolutions that keep and that halve the image's size.
Convolution same(std::size_t channels, Extent kernel) {
  return {.channels = channels, .kernel = kernel, .padding = {kernel.height / 2, kernel.width / 2}};
}
Convolution halving(std::size_t channels) {
  return {.channels = channels, .kernel = 3, .stride = 2};
}

const Extent kAcross{1, 7}, kDown{7, 1};
const MaxPool kHalve{.kernel = 3, .stride = 2};

Value pooled_branch(Graph& g, const std::string& name, Value x, std::size_t channels) {
  x = g.add(name + ".average", AveragePool{.kernel = 3, .stride = 1, .padding = 1}, {x});
  return branch(g, name + ".branch_pool", x, {same(channels, 1)});
}

// The paper's figure 5: two 3x3 windows replace a 5x5 window.
Value block_a(Graph& g, const std::string& name, Value x, std::size_t pooled) {
  const Value one = branch(g, name + ".branch1x1", x, {same(64, 1)});
  const Value five = branch(g, name + ".branch5x5", x, {same(48, 1), same(64, 5)});
  const Value twice = branch(g, name + ".branch3x3dbl", x, {same(64, 1), same(96, 3), same(96, 3)});
  return g.add(name, Concat{}, {one, five, twice, pooled_branch(g, name, x, pooled)});
}

// Figure 10: halves the size.
Value block_b(Graph& g, const std::string& name, Value x) {
  const Value three = branch(g, name + ".branch3x3", x, {halving(384)});
  const Value twice = branch(g, name + ".branch3x3dbl", x, {same(64, 1), same(96, 3), halving(96)});
  return g.add(name, Concat{}, {three, twice, g.add(name + ".branch_pool", kHalve, {x})});
}

// Figure 6: 7x7 windows as a row and a column.
Value block_c(Graph& g, const std::string& name, Value x, std::size_t c) {
  const Value one = branch(g, name + ".branch1x1", x, {same(192, 1)});
  const Value seven = branch(g, name + ".branch7x7", x, {same(c, 1), same(c, kAcross), same(192, kDown)});
  const Value twice = branch(g, name + ".branch7x7dbl", x,
                             {same(c, 1), same(c, kDown), same(c, kAcross), same(c, kDown), same(192, kAcross)});
  return g.add(name, Concat{}, {one, seven, twice, pooled_branch(g, name, x, 192)});
}

Value block_d(Graph& g, const std::string& name, Value x) {
  const Value three = branch(g, name + ".branch3x3", x, {same(192, 1), halving(320)});
  const Value seven =
      branch(g, name + ".branch7x7x3", x, {same(192, 1), same(192, kAcross), same(192, kDown), halving(192)});
  return g.add(name, Concat{}, {three, seven, g.add(name + ".branch_pool", kHalve, {x})});
}

// Figure 7: a row and a column side by side.
Value block_e(Graph& g, const std::string& name, Value x) {
  const Value one = branch(g, name + ".branch1x1", x, {same(320, 1)});
  const auto both = [&](const std::string& of, Value from) {
    return std::pair{unit(g, of + "a", from, same(384, {1, 3})), unit(g, of + "b", from, same(384, {3, 1}))};
  };
  const auto [row, column] = both(name + ".branch3x3_2", unit(g, name + ".branch3x3_1", x, same(384, 1)));
  const auto [second_row, second_column] =
      both(name + ".branch3x3dbl_3", branch(g, name + ".branch3x3dbl", x, {same(448, 1), same(384, 3)}));
  return g.add(name, Concat{}, {one, row, column, second_row, second_column, pooled_branch(g, name, x, 192)});
}

}  // namespace

// Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception architecture for computer vision", CVPR 2016, in
// torchvision's layout and names, but without the auxiliary classifier, as in the scaling figures of tf_cnn_benchmarks.
Graph inception_v3(const Task& task) {
  Graph g(task.image);
  Value x = image_input(g, task);
  x = unit(g, "Conv2d_1a_3x3", x, halving(32));
  x = unit(g, "Conv2d_2a_3x3", x, {.channels = 32, .kernel = 3});
  x = unit(g, "Conv2d_2b_3x3", x, same(64, 3));
  x = g.add("maxpool1", kHalve, {x});
  x = unit(g, "Conv2d_3b_1x1", x, same(80, 1));
  x = unit(g, "Conv2d_4a_3x3", x, {.channels = 192, .kernel = 3});
  x = g.add("maxpool2", kHalve, {x});
  x = block_a(g, "Mixed_5b", x, 32);
  x = block_a(g, "Mixed_5c", x, 64);
  x = block_a(g, "Mixed_5d", x, 64);
  x = block_b(g, "Mixed_6a", x);
  x = block_c(g, "Mixed_6b", x, 128);
  x = block_c(g, "Mixed_6c", x, 160);
  x = block_c(g, "Mixed_6d", x, 160);
  x = block_c(g, "Mixed_6e", x, 192);
  x = block_d(g, "Mixed_7a", x);
  x = block_e(g, "Mixed_7b", x);
  x = block_e(g, "Mixed_7c", x);
  x = g.add("avgpool", AdaptiveAveragePool{1}, {x});
  x = dropout(g, "dropout", 0.5f, x);
  x = g.add("fc", Dense{.units = task.classes, .stddev = 0.1f}, {x});
  return with_loss(g, task, x);
}

}  // namespace annulus
