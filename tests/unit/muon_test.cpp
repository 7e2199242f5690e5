// Muon against its formulas in double precision.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "kernels/base/host_memory.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/orthogonalize.h"
#include "kernels/instruction_set.h"
#include "kernels/matrix_exchange.h"
#include "src/step/optimizer.h"
#include "tests/unit/naive_muon.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using test::Matrix;
using test::naive_orthogonal;
using test::product;
using test::random_values;
using test::transposed;

constexpr Muon kNewtonSchulz{.iteration = Muon::Iteration::newton_schulz, .steps = 5};

// Whether products round their factors to bf16, which has 8 bits.
bool has_tiles() {
  return used_instruction_set() == InstructionSet::amx;
}

Matrix matrix_of(const std::vector<float>& values, const MatrixSize& size) {
  return {size.rows, size.columns, {values.begin(), values.end()}};
}

double distance(const std::vector<float>& ours, const std::vector<double>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) most = std::max(most, std::abs(ours[i] - expected[i]));
  return most;
}

std::vector<float> orthogonal(const Muon& rule, std::vector<float> values, const MatrixSize& size,
                              bool with_tiles = has_tiles()) {
  (with_tiles ? cpu::make_orthogonalizer(rule) : cpu::make_float32_orthogonalizer(rule))->run(values, size);
  return values;
}

// Returns a matrix with orthogonal rows or columns: a Householder reflection's.
Matrix reflection(std::size_t size, std::uint64_t seed) {
  const std::vector<float> v = random_values(size, seed);
  double squares = 0;
  for (const float value : v) squares += double{value} * value;
  Matrix result{size, size};
  for (std::size_t i = 0; i < size; ++i)
    for (std::size_t j = 0; j < size; ++j) result.at(i, j) = (i == j) - 2 * double{v[i]} * v[j] / squares;
  return result;
}

}  // namespace

TEST_CASE("orthogonal matrices match the iteration in double precision") {
  const Muon rule = GENERATE(Muon{}, kNewtonSchulz, Muon{.steps = 9});
  const bool with_tiles = GENERATE(false, true);
  if (with_tiles && !has_tiles()) return;
  const auto [rows, columns] =
      GENERATE(table<std::size_t, std::size_t>({{1, 1}, {1, 70}, {70, 1}, {5, 9}, {37, 180}, {300, 40}, {130, 130}}));
  CAPTURE(static_cast<int>(rule.iteration), rule.steps, with_tiles, rows, columns);
  const MatrixSize size{rows, columns};
  std::vector<std::vector<float>> found;
  for (const int threads : {1, 2, 3}) {
    const cpu::CpuDevice device(threads);
    found.push_back(orthogonal(rule, random_values(rows * columns, rows), size, with_tiles));
  }
  // A rounding error is relative to the elements, which have a root mean square of 1 / sqrt(larger side). Polar
  // Express ends where steps no longer enlarge it.
  const double of_elements = rule.iteration == Muon::Iteration::polar_express ? 0.06 : 0.2,
               tolerance = with_tiles ? of_elements / std::sqrt(static_cast<double>(std::max(rows, columns))) : 1e-5;
  CHECK(distance(found[0], naive_orthogonal(rule, matrix_of(random_values(rows * columns, rows), size)).values) <
        tolerance);
  CHECK(found[0] == found[1]);
  CHECK(found[0] == found[2]);
}

TEST_CASE("singular values of orthogonal matrices are in the published interval") {
  struct Interval {
    Muon rule;
    double least, from, to;
  };
  const auto [rule, least, from, to] =
      GENERATE(Interval{kNewtonSchulz, 0.01, 0.68, 1.14}, Interval{Muon{}, 0.001, 0.99, 1.01});
  // Rounding X to bf16 adds noise: a few thousandths of the norm, as the smallest singular value is.
  const bool with_tiles = GENERATE(false, true);
  if (with_tiles && !has_tiles()) return;
  const double of_values = with_tiles ? 0.02 : 0, of_others = with_tiles ? 0.05 : 0;
  const std::size_t rows = GENERATE(20, 60), columns = 80 - rows, n = std::min(rows, columns);
  CAPTURE(static_cast<int>(rule.iteration), rows);
  const Matrix u = reflection(rows, 1), v = reflection(columns, 2);
  Matrix diagonal{rows, columns};
  for (std::size_t i = 0; i < n; ++i)  // relative to the norm, from 0.7 to a little more than `least`
    diagonal.at(i, i) = std::pow(2 * least, static_cast<double>(i) / static_cast<double>(n - 1));
  const Matrix all = product(product(u, diagonal), transposed(v));
  const std::vector<float> found =
      orthogonal(rule, {all.values.begin(), all.values.end()}, {rows, columns}, with_tiles);
  const Matrix singular = product(product(transposed(u), matrix_of(found, {rows, columns})), v);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) {
      CAPTURE(i, j);
      CHECK(singular.at(i, j) >= (i == j ? from - of_values : -1e-3 - of_others));
      CHECK(singular.at(i, j) <= (i == j ? to + of_values : 1e-3 + of_others));
    }
}

TEST_CASE("matrices of zeros and without elements do not change") {
  for (const bool with_tiles : {false, has_tiles()})
    CHECK(orthogonal({}, std::vector<float>(12), {3, 4}, with_tiles) == std::vector<float>(12));
  CHECK(orthogonal({}, {}, {0, 4}).empty());
  CHECK(orthogonal({}, {}, {4, 0}).empty());
  CHECK(matrix_size({6, 0}).columns == 0);
  CHECK(matrix_size({0, 6}).rows == 0);
  CHECK_THROWS_WITH(matrix_size({6}), "a tensor of 6 is no matrix");
}

TEST_CASE("a tensor is a matrix with a row per filter") {
  const MatrixSize size = matrix_size({16, 8, 3, 3});
  CHECK(size.rows == 16);
  CHECK(size.columns == 72);
  CHECK(orthogonal_scale({}, size) == Approx(0.2 * std::sqrt(72)));
  CHECK(orthogonal_scale({.matches_adamw = false}, size) == 1);
  CHECK(orthogonal_scale({.matches_adamw = false}, {72, 8}) == 3);
}

TEST_CASE("Muon makes the steps of PyTorch 2.15's torch.optim.Muon") {
  struct Expected {
    MatrixSize size;
    bool matches_adamw;  // adjust_lr_fn="match_rms_adamw", else "original"
    std::vector<double> weights;
  };
  // Computed with torch.bfloat16 replaced by torch.float64 in _zeropower_via_newtonschulz, lr=0.02, weight_decay=0.05.
  const auto expected = GENERATE(Expected{{4, 3},
                                          false,
                                          {0.9464016, 0.5613947, -0.4335961, -0.9732974, -0.6523758, 0.2383277,
                                           0.9508784, 0.7126541, -0.1617329, -0.9300268, -0.8625628, 0.0083077}},
                                 Expected{{4, 3},
                                          true,
                                          {0.9794742, 0.5465506, -0.4213763, -0.9822699, -0.6519241, 0.2674022,
                                           0.9550707, 0.7381367, -0.1508383, -0.9158915, -0.8455656, 0.0057618}},
                                 Expected{{2, 5},
                                          false,
                                          {0.9685401, 0.5431640, -0.4112254, -0.9513967, -0.6281907, 0.2558501,
                                           0.9421087, 0.7270229, -0.1401015, -0.9404382}},
                                 Expected{{2, 5},
                                          true,
                                          {0.9842740, 0.5406870, -0.4132565, -0.9710918, -0.6411778, 0.2707543,
                                           0.9505022, 0.7406325, -0.1428447, -0.9227277}});
  Muon rule = kNewtonSchulz;
  rule.weight_decay = 0.05f;
  rule.matches_adamw = expected.matches_adamw;
  cpu::CpuDevice device(1);
  const auto& [rows, columns] = expected.size;
  std::vector<float> weights(16), gradients(16), momenta(16), directions(16);
  for (std::size_t i = 0; i < rows * columns; ++i) weights[i] = std::cos(static_cast<float>(i));
  UpdateSegment segment{{0, 16}, Role::weight};
  segment.factors.orthogonalizes = true;
  segment.tensor = device.plain({rows, columns}, DataType::f32);
  const auto update =
      device.plan(rule, {view_of(weights), view_of(gradients), {}, {view_of(momenta), view_of(directions)}}, {segment});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::size_t i = 0; i < rows * columns; ++i)
      gradients[i] = static_cast<float>(std::sin(1 + static_cast<double>(i * i + 7 * step)));
    update->measure_parameters(segment.range);
    update->run(segment.range, 0.02f, step);
  }
  for (std::size_t i = 0; i < rows * columns; ++i)
    CHECK(weights[i] == Approx(expected.weights[i]).epsilon(0).margin(has_tiles() ? 5e-3 : 1e-5));
}

namespace {

// Convolutions of 3x3 and 1x1 pixels, in oneDNN's layouts, and dense layers.
Graph some_layers() {
  Graph g({6, 6, 1});
  Value x = g.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  x = g.add("conv", Convolution{.channels = 20, .kernel = 3}, {x});
  x = g.add("pointwise", Convolution{.channels = 37, .kernel = 1}, {x});
  x = g.add("norm", BatchNorm{}, {x});
  x = g.add("dense", Dense{24}, {x});
  x = g.add("head", Dense{5}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

bool is_matrix(const std::string& name) {
  return name.ends_with(".weight") && !name.starts_with("head") && !name.starts_with("norm");
}

struct Naive {
  std::vector<double> weights, first, second;
};

void naive_update(const Muon& rule, const Parameter& p, const std::vector<float>& gradients, double step, double rate,
                  Naive& n) {
  const double decay = p.role == Role::weight ? double{rule.weight_decay} : 0;
  const double momentum = rule.momentum;
  Matrix direction = {1, gradients.size()};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double g = gradients[i];
    if (is_matrix(p.name)) {
      n.first[i] = momentum * n.first[i] + (1 - momentum) * g;
      direction.values[i] = momentum * n.first[i] + (1 - momentum) * g;
    } else if (const auto* sgd = std::get_if<Sgd>(&rule.others)) {
      n.first[i] = sgd->momentum * n.first[i] + g + decay * n.weights[i];
      direction.values[i] = n.first[i] - decay * n.weights[i];
    } else {
      const auto& adamw = std::get<AdamW>(rule.others);
      n.first[i] = adamw.beta1 * n.first[i] + (1 - double{adamw.beta1}) * g;
      n.second[i] = adamw.beta2 * n.second[i] + (1 - double{adamw.beta2}) * g * g;
      direction.values[i] = n.first[i] / (1 - std::pow(adamw.beta1, step)) /
                            (std::sqrt(n.second[i] / (1 - std::pow(adamw.beta2, step))) + adamw.epsilon);
    }
  }
  double scale = 1;
  if (is_matrix(p.name)) {
    const MatrixSize size = matrix_size(p.spec.shape);
    direction = naive_orthogonal(rule, {size.rows, size.columns, direction.values});
    scale = orthogonal_scale(rule, size);
  }
  for (std::size_t i = 0; i < gradients.size(); ++i)
    n.weights[i] -= rate * (scale * direction.values[i] + decay * n.weights[i]);
}

}  // namespace

TEST_CASE("Muon matches its formulas for matrices, and others' for the rest, in any slices") {
  Muon rule{.weight_decay = 0.05f, .matches_adamw = GENERATE(true, false)};
  if (GENERATE(false, true)) rule.others = Sgd{0.8f};
  constexpr float kRate = 0.02f, kFactor = 0.5f;
  const auto on = test::make_device(2);
  Device& device = *on;
  Model model(device, some_layers(), Mode::training, 2);
  Parameters& parameters = model.parameters();
  parameters.initialize(1);
  Optimizer optimizer(device, parameters, rule, kRate, 0, Optimizer::Keeps::all, [](const std::string& name) {
    return UpdateFactors{.rate = is_matrix(name) ? kFactor : 1, .orthogonalizes = is_matrix(name)};
  });
  REQUIRE(optimizer.name() == "muon");
  std::map<std::string, Naive> naive;
  for (const Parameter& p : parameters.updated()) {
    const auto start = test::read(device, p, parameters.weight(p));
    const std::vector<double> zeros(start.size());
    naive[p.name] = {{start.begin(), start.end()}, zeros, zeros};
  }
  const std::size_t size = parameters.gradients().bytes / sizeof(float), cut = size / 3 / 16 * 16;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (const Parameter& p : parameters.updated()) {
      const std::vector<float> gradients = random_values(elements(p.spec.shape), 100 * step + p.number);
      device.write(gradients, p.spec, parameters.gradient(p));
      if (p.trained())
        naive_update(rule, p, gradients, static_cast<double>(step), is_matrix(p.name) ? kRate * kFactor : kRate,
                     naive[p.name]);
    }
    optimizer.begin_step();
    optimizer.update({cut, size});
    optimizer.update({0, cut});
  }
  CHECK_FALSE(optimizer.diverged());
  for (const Parameter& p : parameters.updated()) {
    if (!p.trained()) continue;
    CAPTURE(p.name, to_string(p.spec.shape), p.spec.layout->name());
    CHECK(distance(test::read(device, p, parameters.weight(p)), naive[p.name].weights) <
          (has_tiles() && !test::on_gpu() ? 1e-3 : 1e-5));
    CHECK(distance(test::read(device, p, optimizer.state(0, p)), naive[p.name].first) < 1e-5);
  }
}

TEST_CASE("matrices are shared so that costs are balanced") {
  using Shares = std::vector<std::vector<std::size_t>>;
  CHECK(share_by_cost({1, 4, 2, 2, 1}, 1) == Shares{{1, 2, 3, 0, 4}});
  CHECK(share_by_cost({1, 4, 2, 2, 1}, 2) == Shares{{1, 0}, {2, 3, 4}});
  CHECK(share_by_cost({1, 4, 2, 2, 1}, 3) == Shares{{1}, {2, 0}, {3, 4}});
  CHECK(share_by_cost({3}, 4) == Shares{{0}, {}, {}, {}});
  CHECK(share_by_cost({}, 2) == Shares{{}, {}});
}

namespace {

class TwoRanks final : public MatrixExchange {
 public:
  std::size_t ranks() const override { return 2; }
  std::size_t rank() const override { return 0; }
  void gather_gradients(const std::vector<Range>&) override {}
  DeviceView allocate(std::size_t) override { return {}; }
  void gather(DeviceView) override {}
};

}  // namespace

TEST_CASE("owners write matrices in rounds, as many in each as fit") {
  std::vector<UpdateSegment> matrices;
  for (std::size_t at = 0; const std::size_t rows : {16, 1100, 1000, 1200, 32}) {
    UpdateSegment matrix{{at, at + 128 * rows}, Role::weight};
    matrix.tensor.shape = {rows, 128};
    at = matrix.range.end;
    matrices.push_back(matrix);
  }
  TwoRanks exchange;
  UpdateArenas arenas{};
  arenas.exchange = &exchange;
  const MatrixShares shares(arenas, matrices);
  const auto places = [&](std::size_t round, std::size_t rank) {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    for (const auto& [matrix, place] : shares.rounds.at(round).owners.at(rank)) found.emplace_back(matrix, place / 128);
    return found;
  };
  using Places = std::vector<std::pair<std::size_t, std::size_t>>;
  REQUIRE(shares.rounds.size() == 2);
  CHECK(places(0, 0) == Places{{3, 0}, {4, 1200}, {0, 1232}});
  CHECK(places(0, 1) == Places{{1, 0}});
  CHECK(places(1, 0).empty());
  CHECK(places(1, 1) == Places{{2, 0}});
  CHECK(shares.rounds[0].part == 1248 * 128);
  CHECK(shares.rounds[1].part == 1000 * 128);
}

TEST_CASE("a gradient that is not finite is noticed after Muon's update") {
  const auto on = test::make_device(2);
  Device& device = *on;
  Model model(device, some_layers(), Mode::training, 2);
  Parameters& parameters = model.parameters();
  parameters.initialize(1);
  Optimizer optimizer(device, parameters, Muon{}, 0.1f, 0, Optimizer::Keeps::all,
                      [](const std::string& name) { return UpdateFactors{.orthogonalizes = is_matrix(name)}; });
  const Parameter& dense = *std::ranges::find(parameters.all(), "dense.weight", &Parameter::name);
  std::vector<float> gradients = random_values(elements(dense.spec.shape), 1);
  gradients[3] = std::numeric_limits<float>::infinity();
  device.write(gradients, dense.spec, parameters.gradient(dense));
  optimizer.begin_step();
  optimizer.update({0, parameters.gradients().bytes / sizeof(float)});
  device.finish();
  CHECK(optimizer.diverged());
}

}  // namespace annulus
