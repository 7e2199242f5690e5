#include "src/step/strategies.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/synchronize.h"
#include "models/zoo/zoo.h"
#include "src/io/hash.h"
#include "tests/mpi/image_batch.h"
#include "tests/mpi/text_batch.h"
#include "tests/unit/random_values.h"

using namespace annulus;

namespace {

const Task kTask{{6, 5, 1}, {0.5f}, {0.25f}, 4};
constexpr std::size_t kPixels = 30;
constexpr Sgd kRule{.momentum = 0.9f, .weight_decay = 0.01f};
constexpr float kRate = 0.1f;

std::vector<float> copied(DeviceView view) {
  return {reinterpret_cast<float*>(view.address), reinterpret_cast<float*>(view.address + view.bytes)};
}

std::uint64_t hash(DeviceView view) {
  return hash_bytes({view.address, view.bytes});
}

Batch samples(const StepPlan& step, const Range& range) {
  return test::image_batch(step, range, kPixels, kTask.classes);
}

// Batch norms at the bottom and after an addition, and odd numbers of channels.
Graph with_norms() {
  Graph g(kTask.image);
  Value x = g.add("input", ImageInput{kTask.mean, kTask.stddev}, {Graph::kImages});
  x = g.add("norm0", BatchNorm{}, {x});
  const Value shortcut = g.add("conv1", Convolution{.channels = 5, .kernel = 3, .padding = 1}, {x});
  x = g.add("norm1", BatchNorm{}, {shortcut});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("conv2", Convolution{.channels = 5, .kernel = 3, .padding = 1, .bias = false}, {x});
  x = g.add("norm2", BatchNorm{}, {x});
  x = g.add("add", Add{}, {x, shortcut});
  x = g.add("relu2", Relu{}, {x});
  x = g.add("dense", Dense{kTask.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

// Dense layers of one set of weights.
Graph with_shared_layers() {
  Graph g(kTask.image);
  Value x = g.add("input", ImageInput{kTask.mean, kTask.stddev}, {Graph::kImages});
  x = g.add("first", Dense{.units = 24, .relu = true}, {x});
  x = g.add("again", Dense{.units = 24, .relu = true}, {x});
  for (const char* name : {"again2", "again3"})
    x = g.add({.name = name,
               .operation = Dense{.units = 24, .relu = true},
               .inputs = {x},
               .shared = {{"weight", "again.weight"}, {"bias", "again.bias"}}});
  x = g.add("dense", Dense{kTask.classes}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

// The last norm shares its parameters with the one before.
Graph with_shared_norms() {
  Graph shared(kTask.image);
  const Graph apart = with_norms();
  for (Node node : apart.nodes()) {
    if (node.name == "norm2")
      for (const std::string parameter : {"weight", "bias", "running_mean", "running_var"})
        node.shared[parameter] = "norm1." + parameter;
    shared.add(std::move(node));
  }
  return shared;
}

void check_same_on_all_ranks(const World& world, DeviceView memory) {
  const std::uint64_t bits = hash(memory);
  CHECK(world.gather(bits) == std::vector(static_cast<std::size_t>(world.size()), bits));
}

StepPlan plan(std::size_t step, std::size_t global_batch) {
  return {0, {step * global_batch, (step + 1) * global_batch}, false};
}

constexpr double kDecay = 0.05;  // of averages: less than at their beginning, so it does not depend on the step

struct Replica {
  Replica(const World& world, const std::string& algorithm, const BucketOptions& buckets,
          const StepOptions& options = {}, const Graph& graph = make_model("mlp", kTask), const Sgd& rule = kRule,
          WireType wire = WireType::fp32)
      : model(*device, graph, Mode::training, 2),
        optimizer(*device, model.parameters(), rule, kRate, kDecay),
        all_reduce(make_all_reduce(algorithm, world, *device, wire)),
        step(make_step({model, *all_reduce, optimizer, ledger, activity}, buckets, options)) {
    model.parameters().initialize(3);
    optimizer.begin_average();
  }

  StepMetrics run(const World& world, const StepPlan& what, const ControlFlags& flags = {}, std::size_t unit = 1) {
    step->expect(what);
    return step->run(samples(what, what.share(world.rank(), world.size(), 0, unit)), flags, device->mark());
  }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  Model model;
  Optimizer optimizer;
  Ledger ledger{0};
  std::unique_ptr<AllReduce> all_reduce;
  Activity activity;
  std::unique_ptr<Step> step;
};

// Trains the same way without a Step: on the whole global batch in one piece.
struct Alone {
  explicit Alone(const Graph& graph = make_model("mlp", kTask), const Sgd& rule = kRule)
      : model(*device, graph, Mode::training, 2), optimizer(*device, model.parameters(), rule, kRate, kDecay) {
    model.parameters().initialize(3);
    optimizer.begin_average();
  }

  LossSums run(const StepPlan& what) {
    const Batch batch = samples(what, what.positions);
    Network& network = model.network(Mode::training, batch.size());
    network.load(batch.images, {batch.labels}, batch.keys);
    network.forward();
    network.backward(1.0f / static_cast<float>(batch.size()));
    optimizer.update({0, model.parameters().weights().bytes / sizeof(float)});
    return network.loss();
  }

  // Of the mean gradient of these samples.
  double squared_norm(const Range& range) {
    const Batch batch = samples({0, range, false}, range);
    Network& network = model.network(Mode::training, batch.size());
    network.load(batch.images, {batch.labels}, batch.keys);
    network.forward();
    network.backward(1.0f / static_cast<float>(batch.size()));
    double sum = 0;
    for (const Parameter& p : model.parameters().all())
      if (p.trained())
        for (const float value : copied(model.parameters().gradient(p))) sum += double{value} * value;
    return sum;
  }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  Model model;
  Optimizer optimizer;
};

// Checks that all replicas are bit-identical, and have moved from `start` as the single process has.
void check_same_training(const World& world, const Replica& replica, const Alone& alone,
                         const std::vector<float>& start) {
  for (const DeviceView memory : {replica.model.parameters().weights(), replica.optimizer.state(0)}) {
    const std::uint64_t bits = hash(memory);
    CHECK(world.gather(bits) == std::vector(static_cast<std::size_t>(world.size()), bits));
  }
  const auto together = copied(replica.model.parameters().weights());
  const auto single = copied(alone.model.parameters().weights());
  double off = 0, moved = 0;
  for (std::size_t i = 0; i < single.size(); ++i) {
    off = std::max(off, static_cast<double>(std::abs(together[i] - single[i])));
    moved = std::max(moved, static_cast<double>(std::abs(start[i] - single[i])));
  }
  CHECK(off < 1e-5);
  CHECK(moved > 1e-2);
}

// The all-reduce of a rank that takes long between the gradients of its first bucket and the rest.
class SlowAfterFirstBucket final : public AllReduce {
 public:
  SlowAfterFirstBucket(std::unique_ptr<AllReduce> sums, double seconds)
      : AllReduce(sums->info(), sums->context()), sums_(std::move(sums)), seconds_(seconds) {}

  DeviceView allocate(std::size_t bytes, Memory memory) override { return sums_->allocate(bytes, memory); }
  Ticket enqueue(DeviceView values, const Request& request) override {
    const Ticket ticket = sums_->enqueue(values, request);
    if (request.bucket == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    return ticket;
  }
  Range chunk(std::size_t count) const override { return sums_->chunk(count); }
  void wait(Ticket ticket) override { sums_->wait(ticket); }

 private:
  std::unique_ptr<AllReduce> sums_;
  double seconds_;
};

}  // namespace

TEST_CASE("ranks with uneven and empty shares train as one process does") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  // Buckets of a few parameters each, of parts of one, and of a single slot: the loss then has a bucket of its own.
  const std::size_t bucket_bytes = GENERATE(1 << 20, 16'384, 1000, 64);
  if (bucket_bytes == 64 && algorithm == "mpi") return;
  const auto n = static_cast<std::size_t>(world.size());
  const double deferred = GENERATE(0.0, 0.5, 1.0);
  const std::size_t parts = algorithm == "ring" && bucket_bytes == 1000 ? GENERATE(1, 2, 1000) : 1;
  CAPTURE(algorithm, bucket_bytes, deferred, parts);
  const Graph graph = algorithm == "mpi" ? with_shared_layers() : make_model("mlp", kTask);
  Replica replica(world, algorithm, {bucket_bytes, deferred}, {.parts = parts}, graph);
  Alone alone(graph);
  const auto start = copied(alone.model.parameters().weights());
  REQUIRE(copied(replica.model.parameters().weights()) == start);

  // One sample per rank; two on all ranks but one; one rank only; five, and six on one rank; ...
  const std::size_t global_batches[] = {n, 2 * n - 1, 1, 5 * n + 1, n > 1 ? n - 1 : 3};
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const StepPlan what = plan(step, global_batches[step]);
    const StepMetrics found = replica.run(world, what);
    const LossSums expected = alone.run(what);
    const auto size = static_cast<double>(what.global_batch());
    CHECK(found.loss == Approx(expected.loss / size).epsilon(1e-5));
    CHECK(found.measure == Approx(expected.measure / size).epsilon(1e-5));
  }
  replica.step->finish();

  check_same_training(world, replica, alone, start);
  CHECK(replica.ledger.close(world).mean().steps == 5);
}

TEST_CASE("with shards, ranks make exactly the same steps as one rank") {
  const World world, alone = world.apart().node();
  const std::size_t shards = GENERATE(7, 8);
  const BucketOptions buckets{GENERATE(1 << 20, 1000), GENERATE(0.0, 0.5)};
  CAPTURE(shards, buckets.bytes, buckets.deferred);
  const auto train = [&](const World& ranks) {
    const auto device = make_device("cpu", 1);
    const auto all_reduce = make_shard_all_reduce(ranks, *device, shards);
    Model model(*device, shards == 7 ? with_shared_norms() : with_norms(), Mode::training, 3, allocate_in(*all_reduce));
    model.parameters().initialize(3);
    Optimizer optimizer(*device, model.parameters(), kRule, kRate);
    Ledger ledger(0);
    Activity activity;
    const auto step = make_step({model, *all_reduce, optimizer, ledger, activity}, buckets,
                                {.shards = shards,
                                 .rank = static_cast<std::size_t>(ranks.rank()),
                                 .ranks = static_cast<std::size_t>(ranks.size())});
    std::vector<float> found;
    for (const std::size_t global_batch : {2 * shards + 1, shards - 2, std::size_t{1}, 3 * shards}) {
      const StepPlan what = plan(found.size(), global_batch);
      Batch batch = samples(what, what.share(ranks.rank(), ranks.size(), shards));
      batch.keys.resize(batch.size());
      found.push_back(static_cast<float>(step->run(batch, {}, device->mark()).loss));
    }
    step->finish();
    for (const DeviceView view : {model.parameters().weights(), optimizer.state(0)})
      std::ranges::copy(copied(view), std::back_inserter(found));
    return found;
  };
  CHECK(std::ranges::equal(train(world), train(alone)));
}

TEST_CASE("ranks that share an embedding between its uses train as one process does") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  const std::size_t bucket_bytes = GENERATE(1 << 20, 1000);
  const std::size_t parts = GENERATE(1, 2);
  const float clip_norm = GENERATE(0.0f, 1e9f);
  const double deferred = clip_norm > 0 ? 0 : GENERATE(0.0, 0.5);
  CAPTURE(algorithm, bucket_bytes, parts, clip_norm, deferred);
  constexpr TokenShape kShape{7, 300};
  const Graph graph = make_model("gpt-tiny", token_task(kShape));
  const auto n = static_cast<std::size_t>(world.size());
  Replica replica(world, algorithm, {bucket_bytes, deferred},
                  {.parts = parts, .clip_norm = clip_norm, .global_batch = 5 * n + 1}, graph);
  Alone alone(graph);
  const auto start = copied(alone.model.parameters().weights());
  const std::size_t global_batches[] = {n, 2 * n - 1, 1, 5 * n + 1, n > 1 ? n - 1 : 3};
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const StepPlan what = plan(step, global_batches[step]);
    const Batch own = test::text_batch(what, what.share(world.rank(), world.size()), kShape);
    const StepMetrics found = replica.step->run(own, {}, replica.device->mark());

    const Batch all = test::text_batch(what, what.positions, kShape);
    Network& network = alone.model.network(Mode::training, all.size());
    network.load(all.images, {all.labels});
    network.forward();
    network.backward(1.0f / static_cast<float>(all.size()));
    std::vector<std::int32_t> embedded;
    take_tokens(windows_in(all.images), kShape.form(), kShape.vocabulary, 0, embedded);
    const auto& gradient = *network.embedding_gradient();
    alone.device->add_rows(gradient.rows, gradient.type,
                           {reinterpret_cast<std::byte*>(embedded.data()), embedded.size() * sizeof(std::int32_t)},
                           gradient.width, gradient.table);
    alone.optimizer.update({0, alone.model.parameters().weights().bytes / sizeof(float)});
    CHECK(found.loss == Approx(network.loss().loss / static_cast<double>(all.size())).epsilon(1e-5));
  }
  replica.step->finish();
  check_same_training(world, replica, alone, start);
}

TEST_CASE("a network that shares its embedding trains to the same bits with deferred buckets") {
  const World world;
  const std::size_t parts = GENERATE(1, 2);
  const bool frozen = GENERATE(false, true);
  const double share = GENERATE(0.3, 1.0);
  CAPTURE(parts, frozen, share);
  constexpr TokenShape kShape{7, 300};
  constexpr std::size_t kBucketBytes = 16 * 1024;
  Graph graph = make_model("gpt-tiny", token_task(kShape));
  if (frozen) graph = freeze(graph, {"wte"});
  const auto n = static_cast<std::size_t>(world.size());
  const StepOptions options{.parts = parts, .global_batch = 5 * n};
  Replica plain(world, "ring", {kBucketBytes}, options, graph);
  Replica deferred(world, "ring", {kBucketBytes, share}, options, graph);
  const GradientBuckets& buckets = deferred.step->buckets();
  // The table has 75 KiB, after the first bucket, which has the metrics.
  CHECK(buckets.deferred().begin == (frozen ? 1 : 6));
  CHECK(buckets.deferred().size() > 2);
  if (share == 1.0) CHECK(buckets.deferred().end == buckets.size());
  const std::size_t global_batches[] = {n, 1, 5 * n, 2 * n - 1, n};
  for (std::size_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const StepPlan what = plan(step, global_batches[step]);
    const Batch own = test::text_batch(what, what.share(world.rank(), world.size()), kShape);
    const StepMetrics expected = plain.step->run(own, {}, plain.device->mark());
    CHECK(deferred.step->run(own, {}, deferred.device->mark()).loss == expected.loss);
    if (step == 3) {  // as before an evaluation
      plain.step->finish();
      deferred.step->finish();
    }
  }
  plain.step->finish();
  deferred.step->finish();
  const auto bits = [](Replica& replica) {
    return std::pair(hash(replica.model.parameters().weights()), hash(replica.optimizer.state(0)));
  };
  CHECK(bits(deferred) == bits(plain));
}

// Short all-reduces do not run beside the computation: the slow rank's first one completes when all of its gradients
// are ready.
TEST_CASE("waiting for any bucket counts as waiting while another rank still computes") {
  const World world;
  if (world.size() == 1) return;
  constexpr double kSeconds = 0.02;
  constexpr int kSteps = 5;
  const bool slow = world.rank() == world.size() - 1;
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model("mlp", kTask), Mode::training, 2);
  model.parameters().initialize(3);
  Optimizer optimizer(*device, model.parameters(), kRule, kRate);
  Ledger ledger(0);
  SlowAfterFirstBucket all_reduce(make_all_reduce("shm", world, *device), slow ? kSeconds : 0);
  Activity activity;
  const auto step = make_step({model, all_reduce, optimizer, ledger, activity}, {1000, 0}, {});
  const auto n = static_cast<std::size_t>(world.size());
  for (std::size_t number = 0; number < kSteps; ++number) {
    const StepPlan what = plan(number, n);
    step->run(samples(what, what.share(world.rank(), world.size())), {}, device->mark());
  }
  step->finish();
  const StepTimes first = ledger.close(world).ranks.front();
  CHECK(first.seconds[StepTimes::waiting_for_slower_ranks] > 0.5 * kSteps * kSeconds);
}

TEST_CASE("gradients are clipped by the global norm, identically on all ranks") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  constexpr float kLimit = 0.25f;
  Replica clipped(world, "ring", {GENERATE(1 << 20, 1000, 64), 0}, {.parts = 2, .clip_norm = kLimit});
  Replica free(world, "ring", {});
  const auto start = copied(free.model.parameters().weights());
  const StepPlan what = plan(0, 3 * n);
  clipped.run(world, what);
  free.run(world, what);
  const GradientNorms norms = clipped.optimizer.take_norms();
  CHECK(norms.steps == 1);
  REQUIRE(norms.mean() > kLimit);
  CHECK(world.gather(norms.sum) == std::vector(n, norms.sum));
  // In the first step the velocity is the gradient plus its share of the weights.
  const auto short_ones = copied(clipped.optimizer.state(0)), long_ones = copied(free.optimizer.state(0));
  for (const Parameter& p : free.model.parameters().all()) {
    if (!p.trained()) continue;
    const float decay = p.role == Role::weight ? kRule.weight_decay : 0;
    for (std::size_t i = p.offset / 4; i < (p.offset + p.bytes) / 4; ++i) {
      const float gradient = long_ones[i] - decay * start[i];
      REQUIRE(short_ones[i] - decay * start[i] ==
              Approx(gradient * kLimit / static_cast<float>(norms.mean())).margin(1e-6));
    }
  }
  CHECK_THROWS_WITH(Replica(world, "ring", {64, 0.5}, {.clip_norm = kLimit}),
                    Catch::Contains("--defer cannot be used with --clip-norm"));
}

TEST_CASE("the norms of the parts' gradients are those of gradients computed apart") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const std::size_t bucket = GENERATE(1 << 20, 64), parts = GENERATE(1, 2, 3),
                    global_batch = GENERATE_COPY(1, 3 * n, 5 * n + 1);
  CAPTURE(bucket, parts, global_batch);
  Replica replica(world, "auto", {bucket, 0}, {.parts = parts, .clip_norm = 0.01f});
  Alone alone;
  const StepPlan what = plan(0, global_batch);
  replica.run(world, what);
  CHECK(replica.step->part_norms()->take().parts == 0);  // not requested
  replica.step->part_norms()->request();
  replica.model.parameters().initialize(3);
  replica.run(world, what);
  replica.step->finish();
  const PartNorms mine = replica.step->part_norms()->take();
  std::array<double, 2> found{mine.squares, mine.parts}, expected{};
  world.sum(found);
  for (int rank = 0; rank < world.size(); ++rank) {
    const Range share = what.share(rank, world.size());
    for (std::size_t part = 0; part < std::min(parts, share.size()); ++part) {
      const Range range = split(share.size(), std::min(parts, share.size()), part);
      expected[0] += alone.squared_norm({share.begin + range.begin, share.begin + range.end}) *
                     static_cast<double>(range.size()) / static_cast<double>(global_batch);
      ++expected[1];
    }
  }
  CHECK(found[0] == Approx(expected[0]).epsilon(1e-4));
  CHECK(found[1] == expected[1]);
  if (found[1] < 2) return;
  // The whole batch's norm is taken before clipping; from a single process, the estimate is the same.
  const double whole = replica.optimizer.take_norms().last, alone_whole = alone.squared_norm(what.positions);
  CHECK(whole * whole == Approx(alone_whole).epsilon(1e-4));
  const NoiseSample sample = estimate_noise({found[0], found[1]}, whole * whole, global_batch),
                    direct = estimate_noise({expected[0], expected[1]}, alone_whole, global_batch);
  CHECK(sample.gradient == Approx(direct.gradient).epsilon(1e-3).margin(1e-4));
  CHECK(sample.noise == Approx(direct.noise).epsilon(1e-3));
}

TEST_CASE("with synchronized batch norm, ranks train as one process does, statistics included") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const BucketOptions buckets{GENERATE(1 << 20, 64), GENERATE(0.0, 0.7)};
  const std::string algorithm = GENERATE("auto", "message-ring");
  CAPTURE(buckets.bytes, buckets.deferred, algorithm);
  Replica replica(world, algorithm, buckets, {}, synchronize_batch_norms(with_norms()));
  Alone alone(with_norms());
  for (std::size_t step = 0; step < 3; ++step) {
    const StepPlan what = plan(step, (step + 1) * n + n / 2);  // uneven shares
    replica.run(world, what);
    alone.run(what);
    replica.step->finish();
    const auto together = copied(replica.model.parameters().weights()),
               single = copied(alone.model.parameters().weights());
    const auto velocity = copied(replica.optimizer.state(0)), expected = copied(alone.optimizer.state(0));
    for (std::size_t i = 0; i < single.size(); ++i) {
      CAPTURE(step, i);
      REQUIRE(together[i] == Approx(single[i]).epsilon(1e-4).margin(1e-5));
      REQUIRE(velocity[i] == Approx(expected[i]).epsilon(1e-4).margin(1e-5));
    }
  }
  CHECK(replica.ledger.close(world).mean().steps == 3);
}

namespace {

// A replica with an average, whose gradients are in the all-reduce's memory.
struct Gatherable {
  Gatherable(const World& world, const std::string& algorithm, const UpdateRule& rule, const BucketOptions& buckets,
             const StepOptions& options = {}, const Graph& graph = with_norms(), WireType wire = WireType::fp32,
             bool shares_matrices = false)
      : all_reduce(make_all_reduce(algorithm, world, *device, wire)),
        within_node(shares_matrices ? make_node_all_reduce(world, *device) : nullptr),
        model(
            *device, graph, Mode::training, 2, allocate_in(*all_reduce), [] {},
            allocate_weights(options.strategy, *all_reduce)),
        optimizer(*device, model.parameters(), rule, kRate, kDecay, kept_by(options.strategy),
                  [](const std::string& name) {
                    return UpdateFactors{.orthogonalizes = name.starts_with("conv") && name.ends_with(".weight")};
                  }),
        step(make_step({model, *all_reduce, optimizer, ledger, activity, nullptr, nullptr, within_node.get()}, buckets,
                       options)) {
    model.parameters().initialize(3);
    optimizer.begin_average();
  }
  StepMetrics run(const World& world, const StepPlan& what, std::size_t unit = 1) {
    step->expect(what);
    return step->run(samples(what, what.share(world.rank(), world.size(), 0, unit)), {.evaluate = 1}, device->mark());
  }
  std::uint64_t weights() const { return hash(model.parameters().weights()); }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  std::unique_ptr<AllReduce> all_reduce, within_node;
  Model model;
  Optimizer optimizer;
  Ledger ledger{0};
  Activity activity;
  std::unique_ptr<Step> step;
};

}  // namespace

TEST_CASE("sharded training has the bits of synchronous training and a share of the optimizer's memory") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const auto [algorithm, wire] = GENERATE(table<std::string, WireType>({{"shm", WireType::fp32},
                                                                        {"ring", WireType::fp32},
                                                                        {"message-ring", WireType::fp32},
                                                                        {"message-ring", WireType::bf16}}));
  const UpdateRule rule = GENERATE(UpdateRule(kRule), UpdateRule(AdamW{.weight_decay = 0.01f}),
                                   UpdateRule(Lars{.momentum = 0.9f, .weight_decay = 0.01f, .trust = 0.1f}),
                                   UpdateRule(Muon{.weight_decay = 0.01f}));
  const float clip_norm = GENERATE(0.0f, 0.5f);
  const double deferred = clip_norm > 0 || needs_whole_parameters(rule) ? 0 : 0.5;
  if (n == 1 && algorithm != "ring") return;
  const Graph graph = algorithm == "ring" ? with_shared_norms() : with_norms();
  Gatherable whole(world, algorithm, rule, {640, deferred}, {.clip_norm = clip_norm}, graph, wire),
      sharded(world, algorithm, rule, {640, deferred}, {.clip_norm = clip_norm, .strategy = Strategy::sharded}, graph,
              wire);
  REQUIRE(whole.step->buckets().size() > 2);
  REQUIRE((sharded.step->buckets().deferred().size() > 0) == (deferred > 0));
  for (std::size_t step = 0; step < 4; ++step) {
    CAPTURE(algorithm, to_string(wire), rule.index(), clip_norm, step);
    const StepPlan what = plan(step, step == 2 && n > 1 ? n - 1 : 2 * n);  // once the last rank's share is empty
    const StepMetrics expected = whole.run(world, what), found = sharded.run(world, what);
    CHECK(found.loss == expected.loss);
    CHECK(found.control_flags == expected.control_flags);
    if (step == 1) continue;  // the next step's forward completes it
    for (Gatherable* run : {&whole, &sharded}) run->step->finish();
    CHECK(sharded.weights() == whole.weights());
    check_same_on_all_ranks(world, sharded.model.parameters().weights());
  }
  if (clip_norm == 0)
    for (Gatherable* run : {&whole, &sharded}) run->optimizer.measure_norm();
  const GradientNorms expected = whole.optimizer.take_norms(), found = sharded.optimizer.take_norms();
  CHECK(found.steps == expected.steps);
  CHECK(found.sum == expected.sum);
  CHECK((expected.largest > clip_norm));

  Optimizer& own = sharded.optimizer;
  KeptState& strategy = sharded.step->kept_state();
  const auto check_kept = [&](DeviceView kept, DeviceView all) {
    const auto bytes = world.gather(std::uint64_t{kept.bytes});
    CHECK(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}) == all.bytes);
    CHECK(hash(strategy.gather(kept)) == hash(all));
  };
  for (std::size_t i = 0; i < own.states(); ++i) check_kept(own.state(i), whole.optimizer.state(i));
  check_kept(own.average(), whole.optimizer.average());
  // Evaluated in the weights' place, and back.
  const std::uint64_t weights = sharded.weights();
  const DeviceView average = strategy.gather(own.average());
  strategy.swap_weights(sharded.model.parameters(), average);
  CHECK(hash(sharded.model.parameters().weights().slice(0, average.bytes)) == hash(whole.optimizer.average()));
  world.barrier();
  strategy.swap_weights(sharded.model.parameters(), average);
  CHECK(sharded.weights() == weights);
  // Back into states: every rank takes its own.
  const auto state = copied(whole.optimizer.average());
  const auto pieces = std::as_bytes(std::span(state));
  for (std::size_t begin = 0; begin < pieces.size(); begin += 1000)
    own.write(own.state(0), begin, pieces.subspan(begin, std::min<std::size_t>(1000, pieces.size() - begin)));
  CHECK(hash(strategy.gather(own.state(0))) == hash(whole.optimizer.average()));
}

TEST_CASE("ranks of a node share Muon's matrices, with the bits of ranks that compute all of them") {
  const World world(GENERATE(0, 2));
  const std::string algorithm = GENERATE("auto", "message-ring", "mpi");
  CAPTURE(algorithm, world.largest_node());
  const auto n = static_cast<std::size_t>(world.size());
  const Muon rule{.weight_decay = 0.01f};
  const Graph graph = with_norms();
  Gatherable shared(world, algorithm, rule, {640, 0}, {}, graph, WireType::fp32, true),
      alone(world, algorithm, rule, {640, 0});
  CHECK((shared.within_node != nullptr) == (world.local_size() > 1));
  for (std::size_t step = 0; step < 4; ++step) {
    const StepPlan what = plan(step, 2 * n);
    CHECK(shared.run(world, what).loss == alone.run(world, what).loss);
  }
  for (Gatherable* run : {&shared, &alone}) run->step->finish();
  CHECK(shared.weights() == alone.weights());
  CHECK(hash(shared.optimizer.state(0)) == hash(alone.optimizer.state(0)));
  CHECK(hash(shared.optimizer.average()) == hash(alone.optimizer.average()));
  check_same_on_all_ranks(world, shared.optimizer.state(1));
}

TEST_CASE("sharded training has the bits of synchronous training if an embedding is also the head") {
  const World world;
  const BucketOptions buckets{16 * 1024, GENERATE(0.0, 0.5)};
  CAPTURE(buckets.deferred);
  constexpr TokenShape kShape{7, 300};
  const Graph graph = make_model("gpt-tiny", token_task(kShape));
  const auto n = static_cast<std::size_t>(world.size());
  Gatherable whole(world, "auto", kRule, buckets, {.global_batch = 5 * n}, graph),
      sharded(world, "auto", kRule, buckets, {.global_batch = 5 * n, .strategy = Strategy::sharded}, graph);
  for (std::size_t step = 0; step < 4; ++step) {
    CAPTURE(step);
    const StepPlan what = plan(step, step == 2 ? 1 : 5 * n);
    const Batch own = test::text_batch(what, what.share(world.rank(), world.size()), kShape);
    const StepMetrics expected = whole.step->run(own, {}, whole.device->mark());
    CHECK(sharded.step->run(own, {}, sharded.device->mark()).loss == expected.loss);
  }
  for (Gatherable* run : {&whole, &sharded}) run->step->finish();
  CHECK(sharded.weights() == whole.weights());
}

TEST_CASE("a rank keeps 1/N of the optimizer's state") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const auto device = make_device("cpu", 1);
  const auto all_reduce = make_all_reduce("auto", world, *device);
  Task task = kTask;
  task.classes = 1000;
  Model model(
      *device, make_model("mlp", task), Mode::training, 1, allocate_in(*all_reduce), [] {},
      allocate_weights(Strategy::sharded, *all_reduce));
  Optimizer optimizer(*device, model.parameters(), AdamW{}, kRate);
  const auto whole = static_cast<double>(optimizer.state(0).bytes);
  Ledger ledger{0};
  Activity activity;
  const auto step = make_step({model, *all_reduce, optimizer, ledger, activity}, {}, {.strategy = Strategy::sharded});
  for (std::size_t state = 0; state < 2; ++state)
    CHECK(static_cast<double>(optimizer.state(state).bytes) == Approx(whole / static_cast<double>(n)).epsilon(0.01));
}

TEST_CASE("the sharded strategy refuses all-reduces without reduce-scatter") {
  const World world;
  if (world.size() > 1)
    CHECK_THROWS_WITH(Replica(world, "mpi", {}, {.strategy = Strategy::sharded}),
                      Catch::Contains("needs an all-reduce of reduce-scatter and all-gather"));
}

TEST_CASE("control flags are summed, including those of ranks without samples") {
  const World world;
  const int n = world.size();
  Replica replica(world, "ring", {GENERATE(1 << 20, 64), GENERATE(0.0, 0.5)});
  for (const std::size_t batch : {std::size_t{1}, static_cast<std::size_t>(2 * n)}) {
    const StepPlan what = plan(0, batch);
    const auto own = static_cast<float>(world.rank() + 1), all = static_cast<float>(n * (n + 1) / 2);
    CHECK(replica.run(world, what, {own, 0, 2 * own}).control_flags == ControlFlags{all, 0, 2 * all});
    CHECK(replica.run(world, what, {0, world.root() ? 1.0f : 0.0f, 0}).control_flags == ControlFlags{0, 1, 0});
    CHECK(replica.run(world, what).control_flags == ControlFlags{});
  }
}

TEST_CASE("a non-finite loss stops every rank before any parameter changes") {
  const World world;
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  Replica replica(world, "ring", {GENERATE(1 << 20, 1000, 64), GENERATE(0.0, 0.5)});
  const auto n = static_cast<std::size_t>(world.size());
  replica.run(world, plan(0, n));
  replica.step->finish();
  const Parameters& parameters = replica.model.parameters();
  if (world.rank() == world.size() - 1) {  // only this rank detects it by itself
    const auto& all = parameters.all();
    const auto bias = std::find_if(all.begin(), all.end(), [](const Parameter& p) { return p.name == "fc3.bias"; });
    replica.device->write(std::vector<float>(kTask.classes, bad), bias->spec, parameters.weight(*bias));
  }
  const std::uint64_t weights = hash(parameters.weights()), velocity = hash(replica.optimizer.state(0));
  CHECK_THROWS_WITH(replica.run(world, plan(1, n)), Catch::Contains("the loss is"));
  CHECK(hash(parameters.weights()) == weights);
  CHECK(hash(replica.optimizer.state(0)) == velocity);
}

TEST_CASE("an update that diverges on one rank ends the next step on all, though the loss is finite") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const Strategy strategy = GENERATE(Strategy::synchronous, Strategy::sharded);
  const std::string algorithm = strategy == Strategy::sharded && n > 1 ? "ring" : "auto";
  Replica replica(world, algorithm, {64}, {.global_batch = n, .strategy = strategy}, with_norms());
  replica.run(world, plan(0, n));
  replica.step->finish();
  const Parameters& parameters = replica.model.parameters();
  const auto mean = std::ranges::find(parameters.all(), Role::statistic, &Parameter::role);  // not used in training
  if (world.rank() + 1 == world.size() || strategy == Strategy::sharded)  // then all ranks may have the same weights
    floats(parameters.weight(*mean)).front() = std::numeric_limits<float>::infinity();
  CHECK_NOTHROW(replica.run(world, plan(1, n)));
  CHECK_THROWS_WITH(replica.run(world, plan(2, n)), Catch::Contains("an earlier update made parameters"));
}

TEST_CASE("a loss that is not finite before the first update is not blamed on the rate") {
  const World world;
  Replica replica(world, "auto", {});
  const Parameters& parameters = replica.model.parameters();
  const auto bias = std::ranges::find(parameters.all(), "fc3.bias", &Parameter::name);
  replica.device->write(std::vector<float>(kTask.classes, std::numeric_limits<float>::infinity()), bias->spec,
                        parameters.weight(*bias));
  CHECK_THROWS_WITH(replica.run(world, plan(0, static_cast<std::size_t>(world.size()))),
                    Catch::Contains("before the first update") && !Catch::Contains("lower --lr"));
}

namespace {

constexpr std::size_t kOwnBatch = 3;

StepOptions local_steps(const World& world, const std::string& outer) {
  const auto n = static_cast<std::size_t>(world.size());
  return {.global_batch = kOwnBatch * n, .strategy = LocalRounds{{kOwnBatch, n}, outer}};
}

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0;
  for (std::size_t i = 0; i < a.size(); ++i) off = std::max(off, static_cast<double>(std::abs(a[i] - b[i])));
  return off;
}

// The weights of a rank after the updates of its share of a round.
std::vector<float> own_weights(Alone& alone, const Range& share) {
  for (std::size_t begin = share.begin; begin < share.end; begin += kOwnBatch)
    alone.run({0, {begin, std::min(begin + kOwnBatch, share.end)}, false});
  return copied(alone.model.parameters().weights());
}

}  // namespace

TEST_CASE("rounds of one update are synchronous steps if the optimizer has no momentum") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const BucketOptions buckets{GENERATE(1 << 20, 640), 0};
  constexpr Sgd kPlain{.weight_decay = 0.01f};
  Replica local(world, "auto", buckets, local_steps(world, "average"), with_norms(), kPlain);
  Replica synchronous(world, "auto", buckets, {}, with_norms(), kPlain);
  const auto start = copied(local.model.parameters().weights());
  for (std::size_t step = 0; step < 4; ++step) {
    const StepPlan what = plan(step, step == 2 && n > 1 ? kOwnBatch * (n - 1) : kOwnBatch * n);  // once an empty share
    const StepMetrics expected = synchronous.run(world, what, {}, kOwnBatch),
                      found = local.run(world, what, {}, kOwnBatch);
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-5));
    CHECK(found.measure == Approx(expected.measure).epsilon(1e-5));
    CHECK(found.steps == 1);
    local.step->finish();
  }
  const auto weights = copied(local.model.parameters().weights());
  CHECK(farthest(weights, copied(synchronous.model.parameters().weights())) < 1e-5);
  CHECK(farthest(weights, start) > 1e-2);
}

TEST_CASE("a round moves the common weights by the ranks' weighted differences") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const std::string outer = GENERATE("average", "nesterov");
  const BucketOptions buckets{GENERATE(1 << 20, 640), 0};
  CAPTURE(outer, buckets.bytes);
  Replica replica(world, "auto", buckets, local_steps(world, outer), with_norms());
  const Parameters& parameters = replica.model.parameters();
  auto common = copied(parameters.weights());
  std::deque<Alone> alone;  // each of the ranks
  for (std::size_t rank = 0; rank < n; ++rank) alone.emplace_back(with_norms());
  std::vector<float> velocity(common.size());
  std::size_t begin = 0, steps = 0;
  // Two updates of each rank; more of the first ones; the second half of the ranks has nothing to do.
  for (const std::size_t size : {2 * kOwnBatch * n, 2 * kOwnBatch * n + kOwnBatch + 1, kOwnBatch * ((n + 1) / 2)}) {
    const StepPlan round{0, {begin, begin + size}, false};
    begin += size;
    const StepMetrics found = replica.run(world, round, {.evaluate = 1}, kOwnBatch);
    replica.step->finish();
    CHECK(found.control_flags.evaluate == static_cast<float>(n));
    CHECK(found.steps == (size + kOwnBatch * n - 1) / (kOwnBatch * n));
    CHECK(replica.optimizer.step() == (steps += found.steps));

    std::vector<double> difference(common.size()), mean(common.size());
    for (std::size_t rank = 0; rank < n; ++rank) {
      const Range share = round.share(static_cast<int>(rank), world.size(), 0, kOwnBatch);
      const auto own = own_weights(alone[rank], share);
      const double weight = static_cast<double>(share.size()) / static_cast<double>(size);
      for (std::size_t i = 0; i < own.size(); ++i) {
        difference[i] += weight * (double{common[i]} - own[i]);
        mean[i] += weight * own[i];
      }
    }
    for (const Parameter& p : parameters.all()) {
      for (std::size_t i = p.offset / sizeof(float); i < (p.offset + p.bytes) / sizeof(float); ++i) {
        const auto by = static_cast<float>(difference[i]);
        velocity[i] = 0.5f * velocity[i] + by;
        if (p.trained()) common[i] -= outer == "average" ? by : 0.5f * (by + 0.5f * velocity[i]);
        if (p.role == Role::statistic) common[i] = static_cast<float>(mean[i]);
      }
    }
    CHECK(farthest(copied(parameters.weights()), common) < 1e-5);
    const std::uint64_t bits = hash(parameters.weights());
    CHECK(world.gather(bits) == std::vector(n, bits));
    common = copied(parameters.weights());
    for (Alone& rank : alone)
      rank.device->upload({parameters.weights().address, parameters.weights().bytes},
                          rank.model.parameters().weights());
  }

  // The optimizers' states and averages differ until they are adopted.
  const auto check_mean = [&](const auto& kept) {
    std::vector<double> mean(common.size());
    for (const Alone& rank : alone) {
      const auto own = copied(kept(rank.optimizer));
      for (std::size_t i = 0; i < own.size(); ++i) mean[i] += own[i] / static_cast<double>(n);
    }
    const DeviceView state = kept(replica.optimizer);
    const auto before = copied(state);
    const DeviceView gathered = replica.step->kept_state().gather(state);
    CHECK(farthest(copied(gathered), {mean.begin(), mean.end()}) < 1e-5);
    CHECK(copied(state) == before);
    check_same_on_all_ranks(world, gathered);
    replica.step->kept_state().adopt(gathered, state);
    CHECK(copied(state) == copied(gathered));
  };
  check_mean([](const Optimizer& optimizer) { return optimizer.state(0); });
  check_mean([](const Optimizer& optimizer) { return optimizer.average(); });
  CHECK(static_cast<bool>(replica.step->kept_state().outer_velocity()) == (outer == "nesterov"));
}

TEST_CASE("a loss that is not finite is found at the end of a round, on all ranks") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  Replica replica(world, "auto", {}, local_steps(world, "average"));
  if (world.rank() + 1 == world.size()) {
    const Parameters& parameters = replica.model.parameters();
    const auto bias = std::ranges::find(parameters.all(), Role::offset, &Parameter::role);
    floats(parameters.weight(*bias)).front() = std::numeric_limits<float>::quiet_NaN();
  }
  CHECK_THROWS_WITH(replica.run(world, plan(0, 2 * kOwnBatch * n), {}, kOwnBatch), Catch::Contains("the loss is nan"));
}

TEST_CASE("own updates are clipped one by one") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  StepOptions options = local_steps(world, "average");
  options.clip_norm = 0.01f;
  Replica replica(world, "auto", {}, options);
  const auto start = copied(replica.model.parameters().weights());
  const StepPlan round = plan(0, 4 * kOwnBatch * n);
  replica.run(world, round, {}, kOwnBatch);
  CHECK(replica.optimizer.take_norms().steps == 4);
  double squares = 0;
  const auto weights = copied(replica.model.parameters().weights());
  for (const Parameter& p : replica.model.parameters().all())
    if (p.role == Role::offset)
      for (std::size_t i = p.offset / sizeof(float); i < (p.offset + p.bytes) / sizeof(float); ++i)
        squares += std::pow(double{weights[i]} - start[i], 2);
  // Velocities of at most 1, 1.9, 2.71 and 3.439 times the limit.
  CHECK(std::sqrt(squares) < kRate * 0.01 * (1 + 1.9 + 2.71 + 3.439) + 1e-6);
  CHECK(squares > 0);
}

namespace {

StepOptions async_steps(const World& world, std::size_t batch, std::size_t global_batch, std::size_t staleness,
                        std::size_t servers = 0) {
  return {.global_batch = global_batch,
          .strategy = AsyncRounds{.round = {batch, static_cast<std::size_t>(world.size()) - servers},
                                  .staleness = staleness,
                                  .servers = servers,
                                  .world = &world}};
}

// This rank's share of a round in steps that `ranks` ranks compute.
Batch samples_of_round(const World& world, const StepPlan& round, int ranks) {
  Batch batch{round, {}, {}, {}, {}};
  const Range share = round.share(world.rank(), ranks);
  for (std::size_t number = 0; number < share.size(); ++number) {
    const std::size_t position = round.position(share, world.rank(), ranks, number);
    const Batch one = samples(round, {position, position + 1});
    batch.images.insert(batch.images.end(), one.images.begin(), one.images.end());
    batch.labels.push_back(one.labels.front());
  }
  return batch;
}

StepMetrics make_round(Gatherable& replica, const World& world, const StepPlan& round, int ranks) {
  replica.step->expect(round);
  return replica.step->run(samples_of_round(world, round, ranks), {}, replica.device->mark());
}

}  // namespace

TEST_CASE("asynchronous steps without staleness have the bits of synchronous ones") {
  const World world(GENERATE(0, 1, 2));
  const auto n = static_cast<std::size_t>(world.size());
  const std::size_t global_batch = GENERATE_COPY(3 * n, 3 * n + 1);
  const BucketOptions buckets{GENERATE(1 << 20, 640), 0};
  CAPTURE(world.one_node(), global_batch, buckets.bytes);
  const std::size_t own = split(global_batch, n, static_cast<std::size_t>(world.rank())).size();
  Gatherable async(world, "ring", kRule, buckets, async_steps(world, own, global_batch, 0));
  Gatherable synchronous(world, "ring", kRule, buckets);
  const auto start = copied(async.model.parameters().weights());
  std::size_t begin = 0;
  for (const std::size_t size : {3 * global_batch, 2 * global_batch + n, global_batch}) {
    const StepPlan round{0, {begin, begin + size}, false, {}, global_batch};
    const StepMetrics found = make_round(async, world, round, world.size());
    double loss = 0;
    for (std::size_t steps = 0; begin < round.positions.end; ++steps) {
      const StepPlan step{0, {begin, std::min(begin + global_batch, round.positions.end)}, false};
      loss += synchronous.run(world, step).loss * static_cast<double>(step.global_batch()) / static_cast<double>(size);
      begin = step.positions.end;
    }
    CHECK(found.loss == Approx(loss).epsilon(1e-5));
    CHECK(async.optimizer.step() == synchronous.optimizer.step());
    CHECK(copied(async.model.parameters().weights()) == copied(synchronous.model.parameters().weights()));
    const auto check_kept = [&](DeviceView kept, DeviceView all) {
      const auto gathered = copied(async.step->kept_state().gather(kept)), expected = copied(all);
      CHECK(std::equal(gathered.begin() + Parameters::kControlFlags, gathered.end(),
                       expected.begin() + Parameters::kControlFlags, expected.end()));
    };
    check_kept(async.optimizer.state(0), synchronous.optimizer.state(0));
    check_kept(async.optimizer.average(), synchronous.optimizer.average());
    check_same_on_all_ranks(world, async.model.parameters().weights());
  }
  CHECK(farthest(copied(async.model.parameters().weights()), start) > 1e-2);
  CHECK(async.ledger.close(world).staleness == std::vector{static_cast<std::int64_t>(7 * n)});
}

TEST_CASE("ranks are at most `staleness` steps apart, and have the same weights after a round") {
  const World world(GENERATE(0, 1));
  const auto n = static_cast<std::size_t>(world.size());
  CAPTURE(world.one_node());
  constexpr std::size_t kBatch = 3, kStaleness = 2, kSteps = 12;
  Gatherable replica(world, "auto", kRule, {}, async_steps(world, kBatch, kBatch * n, kStaleness));
  replica.step->hooks.before_part = [&](std::size_t number) {
    if (number % 3 == static_cast<std::size_t>(world.rank()) % 3)
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
  };
  const StepPlan first{0, {0, kBatch * n * kSteps}, false, {}, kBatch * n};
  make_round(replica, world, first, world.size());
  check_same_on_all_ranks(world, replica.model.parameters().weights());
  CHECK(replica.optimizer.step() == kSteps);
  const auto ages = replica.ledger.close(world).staleness;
  CHECK(ages.size() <= kStaleness + 1);
  CHECK(std::accumulate(ages.begin(), ages.end(), std::size_t{0}) == kSteps * n);

  // In a timed round the last rank has one part for six of each other.
  std::vector<std::size_t> units(n, 6);
  units.back() = 1;
  const std::size_t begin = first.positions.end, parts = 6 * (n - 1) + 1, steps = (parts + n - 1) / n;
  const StepPlan timed{0, {begin, begin + kBatch * parts}, false, units};
  const StepMetrics found = replica.run(world, timed, kBatch);
  CHECK(found.steps == steps);
  CHECK(replica.optimizer.step() == kSteps + steps);
  check_same_on_all_ranks(world, replica.model.parameters().weights());
  const auto later = replica.ledger.close(world).staleness;
  CHECK(later.size() <= steps + kStaleness);
  CHECK(std::accumulate(later.begin(), later.end(), std::size_t{0}) == parts);
  for (const DeviceView kept : {replica.optimizer.state(0), replica.optimizer.average()})
    check_same_on_all_ranks(world, replica.step->kept_state().gather(kept));
}

TEST_CASE("a rank updates its part of the weights while it waits for its own samples") {
  const World world(GENERATE(0, 1));
  const auto n = static_cast<std::size_t>(world.size());
  if (n == 1) return;
  CAPTURE(world.one_node());
  constexpr std::size_t kBatch = 3;
  Gatherable replica(world, "auto", kRule, {}, async_steps(world, kBatch, kBatch * n, 0));
  replica.step->hooks.before_part = [&](std::size_t number) {
    if (number == 3) world.barrier();
  };
  std::vector<std::size_t> units(n, 6);
  units[0] = 1;  // due in the last step
  const StepPlan round{0, {0, kBatch * (6 * (n - 1) + 1)}, false, units};
  replica.step->expect(round);
  if (world.root()) world.barrier();  // the others have been given the weights after 2 steps
  replica.step->run(samples(round, round.share(world.rank(), world.size(), 0, kBatch)), {}, replica.device->mark());
  check_same_on_all_ranks(world, replica.model.parameters().weights());
}

TEST_CASE("ranks that only serve update weights for the others") {
  const World world(GENERATE(0, 1));
  if (world.size() == 1) return;
  // One worker or two, whose sums have the same bits in any order.
  const auto all = static_cast<std::size_t>(world.size()), n = all % 2 == 0 ? all / 2 : 1;
  CAPTURE(world.one_node(), n);
  constexpr std::size_t kBatch = 3, kSteps = 4;
  const std::size_t global_batch = kBatch * n;
  Gatherable async(world, "ring", kRule, {640, 0}, async_steps(world, kBatch, global_batch, 0, all - n));
  const World block = world.block(static_cast<int>(n));
  Gatherable synchronous(block, "ring", kRule, {640, 0});
  const StepPlan round{0, {0, kSteps * global_batch}, false, {}, global_batch};
  make_round(async, world, round, block.size());
  for (std::size_t step = 0; step < kSteps; ++step)
    synchronous.run(block, {0, {step * global_batch, (step + 1) * global_batch}, false});

  CHECK(copied(async.model.parameters().weights()) == copied(synchronous.model.parameters().weights()));
  const auto kept = world.gather(std::uint64_t{async.optimizer.state(0).bytes});
  const auto state = copied(async.step->kept_state().gather(async.optimizer.state(0))),
             expected = copied(synchronous.optimizer.state(0));
  CHECK(
      std::equal(state.begin() + Parameters::kControlFlags, state.end(), expected.begin() + Parameters::kControlFlags));
  CHECK(std::accumulate(kept.begin(), kept.end(), std::uint64_t{0}) == synchronous.optimizer.state(0).bytes);
  CHECK(std::accumulate(kept.begin(), kept.begin() + block.size(), std::uint64_t{0}) == 0);
}
