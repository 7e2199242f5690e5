// The exchange of a shared embedding's gradient in GPU memory.

#include <catch2/catch.hpp>
#include <cmath>

#include "models/zoo/zoo.h"
#include "src/step/embedding_exchange.h"
#include "src/step/strategies.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/mpi/shares.h"
#include "tests/mpi/text_batch.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr TokenShape kShape{7, 300};

// Of a rank in a step. Every value type represents it exactly. `binades`: the range of its exponents; float32 adds
// values of one binade exactly in any order, and rounds the sums of those of many.
std::vector<float> random_gradient(std::size_t count, std::uint64_t rank, std::uint64_t step, std::uint64_t binades) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t draw = mix(rank, step, i);
    const float value = 1 + static_cast<float>(draw % 128) / 128;
    const auto exponent = static_cast<int>((draw >> 16) % binades);
    values[i] = std::ldexp((draw >> 8) % 2 == 0 ? value : -value, -exponent);
  }
  return values;
}

struct Training {
  Training(const World& world, Precision precision, const std::string& algorithm, std::size_t global_batch)
      : device(make_device({.name = "cuda", .precision = precision})),
        all_reduce(make_all_reduce(algorithm, world, *device)),
        model(*device, make_model("gpt-tiny", token_task(kShape)), Mode::training, 2, allocate_in(*all_reduce)),
        optimizer(*device, model.parameters(), Sgd{.momentum = 0.9f}, 0.1f),
        step(make_step({model, *all_reduce, optimizer, ledger, activity}, {1000}, {.global_batch = global_batch})) {
    model.parameters().initialize(3);
  }

  double run(const StepPlan& plan, const Range& range) {
    return step->run(test::text_batch(plan, range, kShape), {}, device->mark()).loss;
  }

  std::vector<float> weights() { return test::floats_of(*device, model.parameters().weights()); }

  std::unique_ptr<Device> device;
  std::unique_ptr<AllReduce> all_reduce;
  Model model;
  Optimizer optimizer;
  Ledger ledger{0};
  Activity activity;
  std::unique_ptr<Step> step;
};

}  // namespace

TEST_CASE("the rows of an embedding's gradient are summed over all ranks, bit-identical on all of them") {
  const World world;
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16, Precision::fp16);
  const std::string algorithm = GENERATE("auto", "message-ring");
  const std::uint64_t binades = GENERATE(1, 20);
  CAPTURE(to_string(precision), algorithm, binades);
  constexpr std::size_t kWidth = 20, kMostWindows = 3;
  const auto ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  const auto device = make_device({.name = "cuda", .precision = precision});
  constexpr float kScale = 256;
  if (LossScaling* scaling = device->loss_scaling()) scaling->set_state({.scale = kScale});
  const auto all_reduce = make_all_reduce(algorithm, world, *device);
  const auto embedding =
      device->plan(TokenEmbedding{kShape.vocabulary, kWidth},
                   {device->plain({kMostWindows, kShape.length + 1}, DataType::i32)}, Mode::training, {});
  const TensorSpec &rows = embedding->output(), &table = embedding->parameters()[0];
  const Buffer row_memory = device->allocate(rows.layout->bytes()),
               table_memory = device->allocate(table.layout->bytes());
  const Network::EmbeddingGradient gradient{table_memory.view(), row_memory.view(), rows.type,
                                            table.layout->bytes() / sizeof(float) / kShape.vocabulary};
  EmbeddingExchange exchange(*device, *all_reduce, kShape.vocabulary, gradient.width,
                             ranks * kMostWindows * kShape.length);

  for (std::size_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    const auto windows_of = [&](std::size_t owner) {  // also none
      const std::size_t count = (owner + step) % (kMostWindows + 1), begin = 100 * step + 10 * owner;
      return test::text_batch({}, {begin, begin + count}, kShape);
    };
    const auto rows_of = [&](std::size_t owner) { return random_gradient(elements(rows.shape), owner, step, binades); };
    std::vector<float> values = random_gradient(elements(table.shape), ranks, step, binades);
    std::vector<double> expected(values.begin(), values.end());
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      const Batch batch = windows_of(owner);
      std::vector<std::int32_t> tokens;
      take_tokens(windows_in(batch.images), kShape.form(), kShape.vocabulary, 0, tokens);
      const std::vector<float> more = rows_of(owner);
      for (std::size_t i = 0; i < tokens.size() * kWidth; ++i)
        if (const std::int32_t token = tokens[i / kWidth]; token >= 0)
          expected[static_cast<std::size_t>(token) * kWidth + i % kWidth] += double{more[i]};
    }

    device->write(values, table, table_memory.view());
    std::vector<float> own = rows_of(rank);
    if (device->loss_scaling() != nullptr)
      for (float& value : own) value *= kScale;
    device->write(own, rows, row_memory.view());
    const Batch batch = windows_of(rank);
    const auto windows = windows_in(batch.images);
    all_reduce->wait(exchange.send_tokens(windows, kShape.form()));
    all_reduce->join(exchange.send_rows(windows, kShape.form(), gradient));
    exchange.add_rows(gradient.table);
    device->read(table, table_memory.view(), values);
    test::check_same_on_every_rank(world, values);
    double furthest = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      furthest = std::max(furthest, std::abs(double{values[i]} - expected[i]));
    CHECK(furthest <= (binades == 1 ? 0 : 1e-6));
  }
}

TEST_CASE("ranks with GPUs that share an embedding between its uses train as one process does") {
  const World world;
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16);
  CAPTURE(to_string(precision));
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t global_batches[] = {ranks, 2 * ranks - 1, 1, 5 * ranks + 1, ranks > 1 ? ranks - 1 : 3};
  Training together(world, precision, "auto", 5 * ranks + 1), alone(world, precision, "none", 5 * ranks + 1);
  const std::vector<float> start = together.weights();
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const StepPlan plan{0, {step * global_batches[step], (step + 1) * global_batches[step]}, false};
    const double expected = alone.run(plan, plan.positions);
    CHECK(together.run(plan, plan.share(world.rank(), world.size())) ==
          Approx(expected).epsilon(test::tolerance(precision)));
  }
  together.step->finish();
  alone.step->finish();
  const std::vector<float> weights = together.weights(), expected = alone.weights();
  test::check_same_on_every_rank(world, weights);
  CHECK(test::distance(weights, expected) <= test::tolerance(precision) * test::distance(start, expected));
}

}  // namespace annulus
