// The whole training step on a GPU: recordings, updates beside backward, and allocations.

#include <cuda_runtime.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "kernels/base/random.h"
#include "kernels/cuda/runtime/compute_lane.h"
#include "kernels/cuda/runtime/lane_clock.h"
#include "models/rewrites/synchronize.h"
#include "models/zoo/zoo.h"
#include "src/step/bucket_plan.h"
#include "src/step/strategies.h"
#include "tests/mpi/image_batch.h"
#include "tests/unit/random_values.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kBatch = 4, kClasses = 10;
const BucketOptions kSomeBuckets{std::size_t{64} << 10, 0};
const BucketOptions kLateBuckets{std::size_t{64} << 10, 0, 0};  // updates that need all gradients end late
const Task kTask{{16, 16, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};

Batch random_batch(std::uint64_t step, std::size_t size) {
  Batch batch;
  batch.step = {0, {0, size}, false};
  const auto pixels = test::random_pixels(size * 16 * 16 * 3, step);
  batch.images.assign(pixels.begin(), pixels.end());
  batch.labels = test::random_labels(size, kClasses, step + 1);
  return batch;
}

// Blocks a device's lane until it is opened.
class Gate {
 public:
  ~Gate() { open(); }

  void close(Device& device) {
    cuda::check(cudaLaunchHostFunc(
        cuda::compute_lane(device), [](void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }, this));
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_ = false;
};

// An all-reduce on the GPU's lanes, before whose last one of a step the lane can be blocked.
class GatedAllReduce final : public AllReduce {
 public:
  GatedAllReduce(const World& world, Device& device) : GatedAllReduce(make_all_reduce("ring", world, device), device) {}

  void block_last(Gate& gate) { gate_ = &gate; }

  DeviceView allocate(std::size_t bytes, Memory memory) override { return all_reduce_->allocate(bytes, memory); }
  Ticket enqueue(DeviceView values, const Request& request) override {
    if (request.next == Next::wait && gate_ != nullptr) std::exchange(gate_, nullptr)->close(device_);
    return all_reduce_->enqueue(values, request);
  }
  Range chunk(std::size_t count) const override { return all_reduce_->chunk(count); }
  void wait(Ticket ticket) override { all_reduce_->wait(ticket); }
  void join(Ticket ticket) override { all_reduce_->join(ticket); }

 private:
  GatedAllReduce(std::unique_ptr<AllReduce> all_reduce, Device& device)
      : AllReduce(all_reduce->info(), all_reduce->context()), all_reduce_(std::move(all_reduce)), device_(device) {}

  std::unique_ptr<AllReduce> all_reduce_;
  Device& device_;
  Gate* gate_ = nullptr;
};

// The ranks that compute in a round.
std::size_t ranks_of(const StepOptions& options) {
  if (const auto* local = std::get_if<LocalRounds>(&options.strategy)) return local->round.ranks;
  if (const auto* async = std::get_if<AsyncRounds>(&options.strategy)) return async->round.ranks;
  return 1;
}

struct Run {
  Run(Precision precision, const UpdateRule& rule, const BucketOptions& buckets, TraceLane* lane = nullptr,
      const StepOptions& options = {}, const std::string& on = "cuda")
      : Run(precision, graph(precision), rule, buckets, lane, options, on) {}
  Run(Precision precision, const Graph& graph, const UpdateRule& rule, const BucketOptions& buckets, TraceLane* lane,
      const StepOptions& options, const std::string& on = "cuda")
      : device(make_device({.name = on, .threads = 1, .precision = precision})),
        all_reduce(world, *device),
        model(
            *device, graph, Mode::training, kBatch, allocate_in(all_reduce), [] {},
            allocate_weights(options.strategy, all_reduce)),
        optimizer(*device, model.parameters(), rule, 0.05f, 0.9, kept_by(options.strategy),
                  [](const std::string& name) {
                    const bool is_filter = name.find("conv") != std::string::npos && name.ends_with(".weight");
                    return UpdateFactors{.orthogonalizes = is_filter};
                  }),
        step(make_step({model, all_reduce, optimizer, ledger, activity, lane}, buckets, options)),
        ranks(static_cast<int>(ranks_of(options))) {
    model.record_to(lane);
    model.parameters().initialize(7);
    optimizer.begin_average();
  }

  // In one precision, with layers that cannot be recorded.
  static Graph graph(Precision precision) {
    const Graph plain = make_model("resnet20", kTask);
    return precision == Precision::fp32 ? synchronize_batch_norms(plain) : plain;
  }

  void steps(std::uint64_t begin, std::uint64_t end) {
    // The last one is smaller, as at the end of an epoch.
    for (std::uint64_t number = begin; number < end; ++number)
      step->run(random_batch(number, number % 4 == 3 ? 3 : kBatch), {}, device->mark());
    step->finish();
  }

  // A round of `size` samples.
  StepMetrics round(std::uint64_t number, std::size_t size) {
    const StepPlan plan{0, {1000 * number, 1000 * number + size}, false};
    step->expect(plan);
    const Range share = plan.share(world.rank(), ranks, 0, kBatch);
    return step->run(test::image_batch(plan, share, 16 * 16 * 3, kClasses), {}, device->mark());
  }

  std::vector<std::byte> weights() { return test::bytes_of(*device, model.parameters().weights()); }
  std::vector<std::byte> copies() { return test::bytes_of(*device, model.parameters().copies()); }
  std::vector<std::byte> average() { return test::bytes_of(*device, optimizer.average()); }
  // The weights of a bucket, without waiting for the lane.
  std::vector<std::byte> weights_now(std::size_t bucket) {
    const Range range = step->buckets().range(bucket);
    std::vector<std::byte> bytes(range.size() * sizeof(float));
    device->peek(model.parameters().weights().slice(range.begin * sizeof(float), bytes.size()), bytes);
    return bytes;
  }

  const World world;
  std::unique_ptr<Device> device;
  GatedAllReduce all_reduce;
  Model model;
  Optimizer optimizer;
  Ledger ledger{0};
  Activity activity;
  std::unique_ptr<Step> step;
  const int ranks;  // that compute in a round
};

bool many_ranks() {
  return World().size() > 2;  // one and two ranks cover all cases
}

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

}  // namespace

TEST_CASE("recorded steps are bit-identical to steps without recording") {
  if (many_ranks()) return;
  const auto [precision, parts] = GENERATE(table<Precision, std::size_t>(
      {{Precision::fp32, 1}, {Precision::bf16, 1}, {Precision::bf16, 4}, {Precision::fp16, 1}, {Precision::fp16, 4}}));
  // Many buckets in one precision, few in the others.
  const BucketOptions buckets{precision == Precision::bf16 ? std::size_t{4096} : std::size_t{1} << 20, 0};
  // The steps of 3 samples have no fourth part.
  const StepOptions options = parts == 1 ? StepOptions{} : StepOptions{.parts = parts, .clip_norm = 1};
  CAPTURE(to_string(precision), buckets.bytes, options.parts);
  TraceLane lane(100'000);
  lane.record(true);  // with spans of every layer nothing is recorded
  Run recorded(precision, Sgd{.momentum = 0.9f}, buckets, nullptr, options);
  Run one_by_one(precision, Sgd{.momentum = 0.9f}, buckets, &lane, options);
  recorded.steps(0, 8);
  one_by_one.steps(0, 8);
  CHECK(recorded.weights() == one_by_one.weights());
  CHECK(recorded.average() == one_by_one.average());
  REQUIRE_FALSE(lane.spans().empty());
  for (const TraceLane::Span& span : lane.spans()) {
    REQUIRE(span.begin > 0);
    REQUIRE(span.begin <= span.end);
  }
}

TEST_CASE("overlapped updates give the same parameters as sequential steps") {
  if (many_ranks()) return;
  const UpdateRule rule = GENERATE(UpdateRule(AdamW{}), UpdateRule(Muon{.steps = 2}));
  Run deferred(Precision::bf16, rule, {4096, 0.5}), plain(Precision::bf16, rule, {4096, 0});
  REQUIRE(deferred.step->buckets().deferred().size() > 0);
  deferred.steps(0, 6);
  plain.steps(0, 6);
  CHECK(deferred.weights() == plain.weights());
}

TEST_CASE("work beside the lane waits for what it awaits only, and the lane waits for it") {
  if (many_ranks()) return;
  const auto device = make_device("cuda");
  const std::array<float, 4> first{1, 2, 3, 4}, second{5, 6, 7, 8};
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  const Buffer memory = device->allocate(sizeof first), sum = device->allocate(sizeof first);
  const auto now = [&](const Buffer& buffer) {
    std::array<float, 4> values{};
    device->peek(buffer.view(), std::as_writable_bytes(std::span(values)));
    return values;
  };
  device->upload(bytes(first), memory.view());
  const Mark uploaded = device->mark();
  Gate gate;
  gate.close(*device);
  device->upload(bytes(second), memory.view());
  Mark added;
  device->run_beside([&] {
    device->await(uploaded);
    device->add(memory.view(), sum.view(), DataType::f32);
    added = device->mark();
  });
  device->add(memory.view(), sum.view(), DataType::f32);
  device->seconds(added);
  CHECK(now(sum) == first);
  CHECK_THROWS(device->run_beside([] { throw std::runtime_error("no"); }));
  gate.open();
  device->finish();
  CHECK(now(sum) == std::array<float, 4>{6, 8, 10, 12});
}

TEST_CASE("updates run beside the rest of backward") {
  constexpr auto kLongest = std::chrono::seconds(20);
  Run gated(Precision::bf16, AdamW{}, kSomeBuckets);
  gated.steps(0, 2);
  const std::size_t last = gated.step->buckets().size() - 1;
  REQUIRE(last > 2);
  const auto before = gated.weights_now(last - 1), last_before = gated.weights_now(last);
  Gate gate;
  gated.all_reduce.block_last(gate);
  gated.step->run(random_batch(3, kBatch), {}, gated.device->mark());
  const auto begun = std::chrono::steady_clock::now();
  while (gated.weights_now(last - 1) == before && std::chrono::steady_clock::now() - begun < kLongest)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(gated.weights_now(last - 1) != before);
  CHECK(gated.weights_now(last) == last_before);
  gate.open();
  gated.step->finish();
}

TEST_CASE("updates beside backward have the bits of updates after it") {
  const auto [precision, rule, parts] = GENERATE(table<Precision, UpdateRule, std::size_t>({
      {Precision::bf16, AdamW{}, 2},
      {Precision::fp32, Sgd{.momentum = 0.9f}, 1},
      {Precision::bf16, Lars{.momentum = 0.9f, .trust = 0.1f}, 1},
      {Precision::bf16, Muon{.steps = 2}, 1},
  }));
  if (many_ranks() && !std::holds_alternative<AdamW>(rule)) return;
  CAPTURE(to_string(precision), rule.index(), parts);
  // Clipping needs all gradients before the first update, even if it changes none.
  Run beside(precision, rule, kSomeBuckets, nullptr, {.parts = parts}),
      after(precision, rule, kSomeBuckets, nullptr, {.parts = parts, .clip_norm = 1e30f});
  for (Run* run : {&beside, &after}) run->steps(1, 4);  // the last one is smaller
  CHECK(beside.weights() == after.weights());
  CHECK(beside.copies() == after.copies());
  CHECK(beside.average() == after.average());
}

TEST_CASE("updates beside the next forward have the bits of updates before it") {
  const auto [precision, rule, options] = GENERATE(table<Precision, UpdateRule, StepOptions>({
      {Precision::fp16, Sgd{.momentum = 0.9f}, {}},
      {Precision::fp16, AdamW{}, {.parts = 2, .clip_norm = 1}},
      {Precision::bf16, Lars{.momentum = 0.9f, .trust = 0.1f}, {.clip_norm = 1}},
      {Precision::fp16, Muon{.steps = 2}, {}},
  }));
  if (many_ranks() && !std::holds_alternative<AdamW>(rule)) return;
  CAPTURE(to_string(precision), rule.index(), options.parts);
  Run late(precision, rule, kLateBuckets, nullptr, options), before(precision, rule, kSomeBuckets, nullptr, options);
  REQUIRE(late_buckets(late.step->buckets().ranges(), 0, kLateBuckets.late).size() > 1);
  REQUIRE(late_buckets(before.step->buckets().ranges(), 0, kSomeBuckets.late).size() == 0);
  for (Run* run : {&late, &before}) {
    // A scale of the loss with which gradients overflow at first.
    if (LossScaling* scaling = run->device->loss_scaling()) scaling->set_state({.scale = 0x1p22f});
    run->steps(1, 4);
    run->steps(4, 9);
  }
  CHECK(late.weights() == before.weights());
  CHECK(late.copies() == before.copies());
  CHECK(late.average() == before.average());
  if (precision != Precision::fp16) return;
  const float scale = late.device->loss_scaling()->state().scale;
  CHECK(scale == before.device->loss_scaling()->state().scale);
  CHECK(scale < 0x1p22f);  // some steps were skipped
  CHECK(scale > 0x1p14f);  // others not
}

TEST_CASE("late updates run beside the next forward") {
  constexpr auto kLongest = std::chrono::seconds(20);
  Run gated(Precision::fp16, AdamW{}, kLateBuckets);
  gated.steps(0, 2);
  const std::size_t last = gated.step->buckets().size() - 1;
  const auto before = gated.weights_now(1), last_before = gated.weights_now(last);
  gated.step->run(random_batch(2, kBatch), {}, gated.device->mark());
  gated.device->finish();
  CHECK(gated.weights_now(1) == before);
  CHECK(gated.weights_now(last) != last_before);
  Gate gate;
  gate.close(*gated.device);  // before the next step's input
  std::thread next([&] { gated.step->run(random_batch(3, kBatch), {}, gated.device->mark()); });
  const auto begun = std::chrono::steady_clock::now();
  while (gated.weights_now(1) == before && std::chrono::steady_clock::now() - begun < kLongest)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(gated.weights_now(1) != before);
  gate.open();
  next.join();
  gated.step->finish();
}

TEST_CASE("sharded steps of Muon have the bits of synchronous ones") {
  const Precision precision = GENERATE(Precision::bf16, Precision::fp32);
  const Graph graph = make_model("lenet", kTask);
  Run whole(precision, graph, Muon{.steps = 2}, kSomeBuckets, nullptr, {}),
      sharded(precision, graph, Muon{.steps = 2}, kSomeBuckets, nullptr, {.strategy = Strategy::sharded});
  const auto start = whole.weights();
  for (Run* run : {&whole, &sharded}) run->steps(1, 4);
  CHECK(whole.weights() != start);
  CHECK(sharded.weights() == whole.weights());
  CHECK(sharded.copies() == whole.copies());
}

TEST_CASE("sharded steps keep a share of the optimizer's state in GPU memory") {
  const World world;
  const auto device = make_device("cuda");
  const auto all_reduce = make_all_reduce("ring", world, *device);
  const Task task{{64, 64, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};
  Model model(
      *device, make_model("mlp", task), Mode::training, 1, allocate_in(*all_reduce), [] {},
      allocate_weights(Strategy::sharded, *all_reduce));
  // By all ranks together, if they share the GPU.
  const auto taken_by = [&](Strategy strategy) {
    world.barrier();
    const std::size_t before = free_memory();
    world.barrier();
    Optimizer optimizer(*device, model.parameters(), AdamW{}, 0.1f, 0.9, kept_by(strategy));
    Ledger ledger(0);
    Activity activity;
    const auto step = make_step({model, *all_reduce, optimizer, ledger, activity}, {}, {.strategy = strategy});
    world.barrier();
    const std::size_t after = free_memory();
    world.barrier();
    return static_cast<double>(before - after);
  };
  const double whole = taken_by(Strategy::synchronous), share = taken_by(Strategy::sharded);
  CHECK(whole > 3.0 * static_cast<double>(model.parameters().gradients().bytes));
  CHECK(share < (1.0 / world.size() + 0.05) * whole);
}

namespace {

StepOptions local_steps(const std::string& outer) {
  const auto n = static_cast<std::size_t>(World().size());
  return {.global_batch = kBatch * n, .strategy = LocalRounds{{kBatch, n}, outer}};
}

StepOptions async_steps(const World& world, std::size_t staleness, std::size_t servers = 0) {
  const std::size_t n = static_cast<std::size_t>(world.size()) - servers;
  return {.global_batch = kBatch * n,
          .strategy = AsyncRounds{.round = {kBatch, n}, .staleness = staleness, .servers = servers, .world = &world}};
}

// `world`: of this run of the test.
void use(const World& world, StepOptions& options) {
  if (auto* async = std::get_if<AsyncRounds>(&options.strategy)) async->world = &world;
}

// An arena with the gradients' layout, row-major.
std::vector<float> values_of(Run& run, DeviceView arena) {
  std::vector<float> values;
  for (const Parameter& p : run.model.parameters().updated()) {
    std::vector<float> of_one(elements(p.spec.shape));
    run.device->read(p.spec, arena.slice(p.offset, p.bytes), of_one);
    values.insert(values.end(), of_one.begin(), of_one.end());
  }
  return values;
}

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

}  // namespace

TEST_CASE("rounds give the weights of the CPU") {
  const World world(GENERATE(0, 1));  // in parameter servers: on one node, and one rank on each
  const std::size_t servers = world.size() > 1 ? 1 : 0;
  StepOptions options = GENERATE_COPY(local_steps("average"), local_steps("nesterov"), async_steps(world, 0),
                                      async_steps(world, 0, servers));
  use(world, options);
  CAPTURE(world.one_node(), options.strategy.index(), ranks_of(options));
  const Graph graph = make_model("lenet", kTask);
  Run gpu(Precision::fp32, graph, Sgd{.momentum = 0.9f}, kSomeBuckets, nullptr, options),
      cpu(Precision::fp32, graph, Sgd{.momentum = 0.9f}, kSomeBuckets, nullptr, options, "cpu");
  const auto weights = [](Run& run) { return values_of(run, run.model.parameters().weights()); };
  const auto start = weights(gpu);
  // Some ranks have no samples or, if it does not depend on their timing which weights they have then, more than
  // others.
  std::uint64_t number = 0;
  const std::size_t more = std::holds_alternative<LocalRounds>(options.strategy) ? 1 : 0;
  const std::size_t ranks = ranks_of(options);
  for (const std::size_t parts : {2 * ranks, 2 * ranks + more, (ranks + 1) / 2}) {
    const StepMetrics found = gpu.round(number, parts * kBatch), expected = cpu.round(number, parts * kBatch);
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-5));
    CHECK(found.measure == Approx(expected.measure).epsilon(1e-5));
    CHECK(found.steps == expected.steps);
    CHECK(gpu.optimizer.step() == cpu.optimizer.step());
    CHECK(gpu.step->own_seconds() >= 0);
    ++number;
  }
  for (Run* run : {&gpu, &cpu}) run->step->finish();
  CHECK(farthest(weights(gpu), start) > 1e-2);
  CHECK(farthest(weights(gpu), weights(cpu)) < 1e-5);
  if (const DeviceView velocity = gpu.step->kept_state().outer_velocity())
    CHECK(farthest(values_of(gpu, velocity), values_of(cpu, cpu.step->kept_state().outer_velocity())) < 1e-5);
  for (const bool states : {true, false}) {
    const auto gathered = [&](Run& run) {
      return values_of(run, run.step->kept_state().gather(states ? run.optimizer.state(0) : run.optimizer.average()));
    };
    CHECK(farthest(gathered(gpu), gathered(cpu)) < 1e-5);
  }
}

TEST_CASE("after a round all ranks have the same weights, and narrow copies of them") {
  const World world;
  const Precision precision = GENERATE(Precision::bf16, Precision::fp16);
  StepOptions options = GENERATE_COPY(local_steps("nesterov"), async_steps(world, 2));
  use(world, options);
  CAPTURE(to_string(precision), options.strategy.index());
  Run run(precision, Sgd{.momentum = 0.9f}, kSomeBuckets, nullptr, options);
  const Parameters& parameters = run.model.parameters();
  const auto expect_narrow_copies = [&] {
    const Buffer expected = run.device->allocate(parameters.copies().bytes);
    run.device->cast_params(parameters.weights(), expected.view());
    CHECK(run.copies() == test::bytes_of(*run.device, expected.view()));
  };
  for (std::uint64_t number = 0; number < 3; ++number) {
    run.round(number, 2 * options.global_batch);
    expect_narrow_copies();
  }
  run.step->finish();
  expect_narrow_copies();
  const auto weights = run.weights();
  const std::uint64_t bits =
      std::hash<std::string_view>()({reinterpret_cast<const char*>(weights.data()), weights.size()});
  CHECK(run.world.gather(bits) == std::vector(ranks_of(options), bits));
}

TEST_CASE("in fp16 each rank skips its own updates that overflow") {
  const StepOptions options = local_steps("average");
  Run run(Precision::fp16, Sgd{.momentum = 0.9f}, kSomeBuckets, nullptr, options);
  const bool overflows = run.world.rank() == run.world.size() - 1;
  LossScaling& scaling = *run.device->loss_scaling();
  scaling.set_state({.scale = overflows ? 0x1p24f : 1024, .good_steps = 0});
  run.round(0, 2 * options.global_batch);
  run.step->finish();
  CHECK(scaling.state().scale == (overflows ? 0x1p22f : 1024));
  CHECK(scaling.state().good_steps == (overflows ? 0 : 2));
  for (const float weight : test::floats_of(*run.device, run.model.parameters().weights()))
    REQUIRE(std::isfinite(weight));
}

TEST_CASE("in fp16 gradients that overflow do not reach the owners of weights") {
  const World world;
  const StepOptions options = async_steps(world, 0);
  Run run(Precision::fp16, Sgd{}, kSomeBuckets, nullptr, options),
      expected(Precision::fp16, Sgd{}, kSomeBuckets, nullptr, options);
  const auto weights = [](Run& of) { return test::floats_of(*of.device, of.model.parameters().weights()); };
  const auto start = weights(run);
  const bool overflows = world.rank() == world.size() - 1;
  run.device->loss_scaling()->set_state({.scale = overflows ? 0x1p24f : 1024, .good_steps = 0});
  expected.device->loss_scaling()->set_state({.scale = 1024, .good_steps = 0});
  for (Run* of : {&run, &expected}) of->round(0, options.global_batch);
  CHECK(run.device->loss_scaling()->state().scale == (overflows ? 0x1p23f : 1024));
  CHECK(run.device->loss_scaling()->state().good_steps == (overflows ? 0 : 1));
  const auto found = weights(run), whole = weights(expected);
  for (const Parameter& p : run.model.parameters().updated()) {
    if (p.role == Role::metric) continue;
    const std::size_t begin = p.offset / sizeof(float), end = begin + elements(p.spec.shape);
    const auto same = [&](const std::vector<float>& others) {
      return std::equal(found.begin() + begin, found.begin() + end, others.begin() + begin);
    };
    CAPTURE(p.name);
    if (p.role == Role::statistic) {
      CHECK(same(whole));
    } else if (p.role == Role::weight) {
      CHECK_FALSE(same(whole));
      CHECK(same(start) == (world.size() == 1));
    }
    CHECK(std::all_of(found.begin() + begin, found.begin() + end, [](float value) { return std::isfinite(value); }));
  }
}

TEST_CASE("a round may have more marks than are kept") {
  if (many_ranks()) return;
  const StepOptions options = local_steps("average");
  Run run(Precision::bf16, Sgd{}, kSomeBuckets, nullptr, options);
  run.step->hooks.before_part = [&](std::size_t) {
    for (std::size_t mark = 0; mark < cuda::LaneClock::kRemembered / 3; ++mark) run.device->mark();
  };
  for (std::uint64_t number = 0; number < 2; ++number) run.round(number, 4 * options.global_batch);
  run.step->finish();
  CHECK(run.ledger.close(run.world).mean().steps == 8);
}

TEST_CASE("a step allocates no GPU memory") {
  if (many_ranks()) return;
  const Precision precision = GENERATE(Precision::bf16, Precision::fp16);
  Run run(precision, Lars{.momentum = 0.9f}, {}, nullptr, {.parts = 2, .clip_norm = 1});
  run.steps(0, 8);  // plans, workspaces, recordings
  const std::size_t before = free_memory();
  run.steps(8, 16);
  CHECK(free_memory() == before);
}

TEST_CASE("a round allocates no GPU memory") {
  if (many_ranks()) return;
  const World world;
  StepOptions options = GENERATE_COPY(local_steps("nesterov"), async_steps(world, 2));
  use(world, options);
  Run run(Precision::bf16, AdamW{}, kSomeBuckets, nullptr, options);
  for (std::uint64_t number = 0; number < 3; ++number) run.round(number, 2 * options.global_batch);
  run.step->finish();
  const std::size_t before = free_memory();
  for (std::uint64_t number = 3; number < 6; ++number) run.round(number, 2 * options.global_batch);
  run.step->finish();
  CHECK(free_memory() == before);
}

}  // namespace annulus
