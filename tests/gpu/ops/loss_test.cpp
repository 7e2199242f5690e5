#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/gpu/ops/gpu.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

using test::Gpu;
using test::GpuTensor;
using test::random_values;
using test::rounded;
using Values = std::vector<float>;

struct LossTrial {
  LossTrial(Gpu& gpu, float smoothing, std::size_t classes, const Values& values,
            const std::vector<std::int32_t>& labels, Mode mode = Mode::training)
      : spec(cuda::value_spec({labels.size(), classes}, gpu.context.type())),
        op(cuda::plan(SoftmaxCrossEntropy{smoothing}, {spec, label_spec(labels.size())}, mode, gpu.context)),
        logits(gpu, spec, values),
        gradient(gpu, spec, Values(values.size(), 77.0f)),
        sums(gpu, op->output(), {77.0f, 77.0f, 77.0f}),
        metrics(gpu, op->parameters().at(0), {77.0f, 77.0f}) {
    Bindings bindings{};
    test::upload(gpu.context, labels.data(), labels.size() * sizeof(std::int32_t), label_memory);
    bindings.inputs = {logits.view(), label_memory.view()};
    bindings.output = sums.view();
    bindings.parameters = {metrics.view()};
    if (mode == Mode::training) bindings.parameter_gradients = {metrics.view()};
    bindings.input_gradients = {mode == Mode::training ? gradient.view() : DeviceView{}, {}};
    op->bind(bindings);
    op->forward();
  }

  static TensorSpec label_spec(std::size_t batch) {
    return {{batch}, DataType::i32, std::make_shared<cuda::Plain>(Shape{batch}, DataType::i32)};
  }

  TensorSpec spec;
  std::unique_ptr<Op> op;
  GpuTensor logits, gradient, sums, metrics;
  Buffer label_memory;
};

}  // namespace

TEST_CASE("on a GPU: softmax cross-entropy: losses, hits, gradients and metrics") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const float smoothing = GENERATE(0.0f, 0.1f);
  const Mode mode = GENERATE(Mode::training, Mode::inference);
  for (const auto& [batch, classes] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {1, 2}, {3, 10}, {50, 17}, {300, 8}, {2, 1000}}) {
    CAPTURE(to_string(gpu.context.precision), smoothing, batch, classes);
    auto logits = random_values(batch * classes, 5);
    for (float& logit : logits) logit *= 5;
    logits = rounded(logits, gpu.context.type());
    const auto labels = test::random_labels(batch, classes, 6);
    LossTrial trial(gpu, smoothing, classes, logits, labels, mode);
    const double s = mode == Mode::training ? double{smoothing} : 0;  // labels are smoothed only to train
    const float weight = 0.25f;
    if (mode == Mode::training) trial.op->backward(weight);
    const auto gradient = trial.gradient.read();
    double loss = 0, furthest = 0;
    int correct = 0, among_five = 0;
    for (std::size_t n = 0; n < batch; ++n) {
      const float* row = logits.data() + n * classes;
      const auto label = static_cast<std::size_t>(labels[n]);
      double total = 0, sum = 0;
      for (std::size_t c = 0; c < classes; ++c) total += std::exp(double{row[c]});
      for (std::size_t c = 0; c < classes; ++c) sum += double{row[c]};
      loss += std::log(total) - (1 - s) * double{row[label]} - s * sum / static_cast<double>(classes);
      correct += std::max_element(row, row + classes) == row + label;
      const auto larger = [&](const float& logit) {
        return &logit < row + label ? logit >= row[label] : logit > row[label];
      };
      among_five += std::count_if(row, row + classes, larger) < 5;
      for (std::size_t c = 0; c < classes; ++c) {
        const double wanted = (c == label ? 1 - s : 0) + s / static_cast<double>(classes);
        const double expected = gpu.scale() * weight * (std::exp(double{row[c]}) / total - wanted);
        furthest = std::max(furthest, std::abs(double{gradient[n * classes + c]} - expected));
      }
    }
    const auto sums = trial.sums.read(), metrics = trial.metrics.read();
    CHECK(sums[0] == Approx(loss).epsilon(1e-6).margin(1e-6));
    CHECK(sums[1] == static_cast<float>(correct));
    CHECK(sums[2] == static_cast<float>(among_five));
    if (mode == Mode::inference) continue;
    CHECK(furthest <= 0.1 * test::tolerance(gpu.context.precision) * gpu.scale());
    CHECK(trial.gradient.clean());
    CHECK(metrics[0] == weight * sums[0]);
    CHECK(metrics[1] == weight * sums[1]);
  }
}

TEST_CASE("on a GPU: softmax cross-entropy neither overflows nor hides NaN; ties go to the first") {
  Gpu gpu(Precision::fp32);
  {
    LossTrial trial(gpu, 0, 3, {1e4f, -1e4f, 0, 1e4f, -1e4f, 0}, {0, 1});
    trial.op->backward(1);
    CHECK(trial.sums.read() == Values{2e4f, 1, 2});
    CHECK(trial.gradient.read() == Values{0, 0, 0, 1, -1, 0});
  }
  {
    const float infinity = std::numeric_limits<float>::infinity();
    LossTrial trial(gpu, 0, 3, {1, -infinity, -infinity}, {0});
    CHECK(trial.sums.read() == Values{0, 1, 1});
  }
  for (std::size_t position = 0; position < 3; ++position) {
    Values logits{1, 2, 3};
    logits[position] = std::numeric_limits<float>::quiet_NaN();
    LossTrial trial(gpu, 0, 3, logits, {2});
    CAPTURE(position);
    CHECK(std::isnan(trial.sums.read()[0]));
  }
  const Values equal(40, 3.0f);
  const auto hits = [&](std::int32_t label) {
    const Values sums = LossTrial(gpu, 0, 40, equal, {label}).sums.read();
    return Values{sums[1], sums[2]};
  };
  CHECK(hits(0) == Values{1, 1});
  CHECK(hits(4) == Values{0, 1});
  CHECK(hits(5) == Values{0, 0});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(LossTrial(gpu, 0, 6, {nan, nan, nan, nan, nan, 1}, {5}).sums.read()[2] == 0);
  CHECK(LossTrial(gpu, 0, 6, {0, 0, 0, 0, 0, nan}, {5}).sums.read()[2] == 0);
}

TEST_CASE("on a GPU: losses of targets: sums, gradients and metrics") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const bool binary = GENERATE(true, false);
  for (const auto& [batch, width] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {3, 10}, {50, 17}, {300, 8}, {2, 1000}}) {
    CAPTURE(to_string(gpu.context.precision), binary, batch, width);
    const auto values = rounded(random_values(batch * width, 5), gpu.context.type());
    auto targets = random_values(batch * width, 6);
    if (binary)
      for (float& target : targets) target = target > 0;
    const TensorSpec spec = cuda::value_spec({batch, width}, gpu.context.type());
    const TensorSpec wanted{spec.shape, DataType::f32, std::make_shared<cuda::Plain>(spec.shape, DataType::f32)};
    const auto op = binary ? cuda::plan(MultiLabelCrossEntropy{}, {spec, wanted}, Mode::training, gpu.context)
                           : cuda::plan(MeanSquaredError{}, {spec, wanted}, Mode::training, gpu.context);
    GpuTensor in(gpu, spec, values), gradient(gpu, spec, Values(values.size(), 77.0f));
    GpuTensor sums(gpu, op->output(), {77.0f, 77.0f}), metrics(gpu, op->parameters().at(0), {77.0f, 77.0f});
    Buffer target_memory;
    test::upload(gpu.context, targets.data(), targets.size() * sizeof(float), target_memory);
    Bindings bindings{};
    bindings.inputs = {in.view(), target_memory.view()};
    bindings.output = sums.view();
    bindings.parameters = bindings.parameter_gradients = {metrics.view()};
    bindings.input_gradients = {gradient.view(), {}};
    op->bind(bindings);
    op->forward();
    constexpr float kWeight = 0.25f;
    op->backward(kWeight);
    const auto found = gradient.read(), total = sums.read(), mean = metrics.read();
    double loss = 0, measure = 0, furthest = 0;
    for (std::size_t n = 0; n < batch; ++n) {
      double terms = 0, errors = 0;
      for (std::size_t i = n * width; i < (n + 1) * width; ++i) {
        const double x = values[i], t = targets[i];
        terms += binary ? std::log1p(std::exp(x)) - t * x : (x - t) * (x - t);
        errors += binary ? (x > 0) != (t > 0.5) : std::abs(x - t);
        const double slope = binary ? 1 / (1 + std::exp(-x)) - t : 2 * (x - t);
        furthest = std::max(furthest, std::abs(found[i] - gpu.scale() * kWeight * slope / static_cast<double>(width)));
      }
      loss += terms / static_cast<double>(width);
      measure += binary ? static_cast<double>(errors == 0) : errors / static_cast<double>(width);
    }
    CHECK(total[0] == Approx(loss).epsilon(1e-5));
    CHECK(total[1] == Approx(measure).epsilon(1e-5));
    CHECK((mean[0] == kWeight * total[0] && mean[1] == kWeight * total[1]));
    CHECK(furthest <= test::tolerance(gpu.context.precision) * gpu.scale());
    CHECK(gradient.clean());
  }
}

}  // namespace annulus
