// Muon on a GPU against its formulas in double precision.

#include <catch2/catch.hpp>

#include "kernels/cuda/ops/plan/operations.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/unit/naive_muon.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

using test::Gpu;
using test::GpuTensor;
using test::Matrix;
using test::random_values;

constexpr float kRate = 0.02f, kDecay = 0.05f;
constexpr Muon kPolarExpress{.weight_decay = kDecay};
constexpr Muon kNewtonSchulz{
    .weight_decay = kDecay, .iteration = Muon::Iteration::newton_schulz, .steps = 5, .matches_adamw = false};

// A tensor whose slot is a whole arena.
struct Trial {
  Trial(Gpu& on, const Muon& rule, const Shape& shape)
      : gpu(&on),
        spec(cuda::weights_spec(shape, on.context.type())),
        weights(on, spec, random_values(elements(shape), 1)),
        gradients(on, spec, std::vector<float>(elements(shape))),
        momenta(on, spec, std::vector<float>(elements(shape))),
        directions(on, spec, std::vector<float>(elements(shape))) {
    const UpdateSegment segment{
        {0, spec.layout->bytes() / sizeof(float)}, Role::weight, {.orthogonalizes = true}, 0, spec};
    if (on.context.type() != DataType::f32)
      copies = cuda::allocate_device(segment.range.size() * size_of(on.context.type()));
    update = cuda::plan_update(rule,
                               {.weights = weights.view(),
                                .gradients = gradients.view(),
                                .copies = copies.view(),
                                .states = {momenta.view(), directions.view()}},
                               {segment}, on.context);
  }

  void run(std::uint64_t step) {
    const Range all{0, spec.layout->bytes() / sizeof(float)};
    update->measure_parameters(all);
    update->run(all, kRate, step);
  }

  Gpu* gpu;
  TensorSpec spec;
  GpuTensor weights, gradients, momenta, directions;
  Buffer copies;
  std::unique_ptr<Update> update;
};

double distance(const std::vector<float>& ours, const std::vector<double>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) most = std::max(most, std::abs(ours[i] - expected[i]));
  return most;
}

// Rounding errors relative to the elements, which have a root mean square of 1 / sqrt(larger side). Polar Express ends
// where steps no longer enlarge them. TF32 has the fraction of fp16.
double tolerance(Precision precision, const Muon& rule, const MatrixSize& size) {
  if (precision == Precision::fp32) return 1e-5;
  const double of_elements = rule.iteration == Muon::Iteration::polar_express ? 0.06 : 0.2;
  return of_elements * (precision == Precision::bf16 ? 1 : 0.25) /
         std::sqrt(static_cast<double>(std::max(size.rows, size.columns)));
}

}  // namespace

TEST_CASE("on a GPU: Muon matches its formulas in double precision") {
  const Precision precision = GENERATE(Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16);
  const Muon rule = GENERATE(kPolarExpress, kNewtonSchulz);
  const Shape shape = GENERATE(Shape{1, 1}, Shape{1, 70}, Shape{70, 1}, Shape{5, 9}, Shape{37, 180}, Shape{300, 40},
                               Shape{66, 66}, Shape{16, 8, 3, 3}, Shape{50, 3, 3, 3}, Shape{20, 12, 1, 1});
  CAPTURE(to_string(precision), static_cast<int>(rule.iteration), to_string(shape));
  Gpu gpu(precision);
  Trial trial(gpu, rule, shape);
  const MatrixSize size = matrix_size(shape);
  const std::vector<float> start = trial.weights.read();
  std::vector<double> weights(start.begin(), start.end()), momenta(start.size());
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const std::vector<float> gradients = random_values(start.size(), 10 + step);
    trial.gradients.write(gradients);
    trial.run(step);
    Matrix direction{size.rows, size.columns};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const double momentum = rule.momentum, g = gradients[i];
      momenta[i] = momentum * momenta[i] + (1 - momentum) * g;
      direction.values[i] = momentum * momenta[i] + (1 - momentum) * g;
    }
    direction = test::naive_orthogonal(rule, direction);
    const double most = tolerance(precision, rule, size), scale = orthogonal_scale(rule, size);
    CHECK(distance(trial.directions.read(), direction.values) < most);
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] -= kRate * (scale * direction.values[i] + kDecay * weights[i]);
    CHECK(distance(trial.weights.read(), weights) < static_cast<double>(step) * (kRate * scale * most + 1e-6));
  }
  CHECK(distance(trial.momenta.read(), momenta) < 1e-6);
  CHECK(trial.weights.clean());
  CHECK(trial.directions.clean());
}

TEST_CASE("on a GPU: Muon's matrices of zeros and without elements do not change") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  for (const Shape& shape : {Shape{12, 20}, Shape{0, 12}, Shape{12, 0}, Shape{0, 3, 3, 3}}) {
    CAPTURE(to_string(shape));
    Trial trial(gpu, Muon{}, shape);
    const std::vector<float> before = trial.weights.read();
    trial.run(1);
    CHECK(trial.weights.read() == before);
    CHECK(trial.directions.read() == std::vector<float>(before.size()));
  }
}

TEST_CASE("on a GPU: a step that is skipped changes neither Muon's weights nor its momenta") {
  Gpu gpu(Precision::fp16);
  Buffer skip;
  const std::uint32_t yes = 1;
  gpu.context.skip = reinterpret_cast<const std::uint32_t*>(test::upload(gpu.context, &yes, sizeof yes, skip));
  Trial trial(gpu, kPolarExpress, {16, 8, 3, 3});
  std::vector<float> gradients = random_values(16 * 8 * 9, 2);
  gradients[3] = std::numeric_limits<float>::infinity();
  trial.gradients.write(gradients);
  const std::vector<float> before = trial.weights.read();
  trial.run(1);
  CHECK(trial.weights.read() == before);
  CHECK(trial.momenta.read() == std::vector<float>(before.size()));
}

}  // namespace annulus
