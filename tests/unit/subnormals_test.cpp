// Every compute thread flushes subnormal numbers to zero, because the tests' main() sets the mode before starting any.

#include "kernels/base/subnormals.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "collectives/all_reduce_worker.h"
#include "src/data/loader.h"
#include "src/step/optimizer.h"
#include "tests/unit/error_text.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

// A product that is subnormal, and one with a subnormal factor.
bool computes_with_zeros() {
  volatile float small = 1e-30f, smaller = 1e-10f, subnormal = std::bit_cast<float>(std::uint32_t{77}), large = 1e30f;
  const float result = small * smaller, from_operand = subnormal * large;
  return result == 0 && from_operand == 0;
}

bool is_subnormal(float value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
  return magnitude > 0 && magnitude < 0x00800000;
}

// An all-reduce that records the threads that run it.
class Observed final : public AllReduceAlgorithm {
 public:
  struct Use {
    std::thread::id thread;
    bool flushes;
  };

  Observed(std::vector<Use>& uses, std::shared_ptr<AllReduceContext> context)
      : AllReduceAlgorithm({"scales"}, std::move(context)), uses_(uses) {}

  void run(std::span<float> values, const Collective&) override {
    for (float& value : values) value *= 1e-10f;
    uses_.push_back({std::this_thread::get_id(), computes_with_zeros()});
  }
  std::uint64_t bytes_sent() const override { return 0; }

 private:
  std::vector<Use>& uses_;
};

// Images that record whether the thread that reads them flushes subnormals.
class ObservedImages final : public Samples {
 public:
  ObservedImages() {
    info_ = {.size = 64, .height = 2, .width = 2, .channels = 1, .classes = {"a"}, .mean = {0.5f}, .stddev = {1}};
  }

  std::int32_t label(std::size_t) const override { return 0; }
  void read_image(std::size_t, std::span<std::uint8_t> pixels) const override {
    std::ranges::fill(pixels, computes_with_zeros() ? 1 : 0);
    if (std::this_thread::get_id() != caller_) in_other_threads_ = true;
  }
  void read_encoded(std::size_t, std::vector<std::uint8_t>&) const override {}
  std::string place(std::size_t) const override { return "nowhere"; }

  bool in_other_threads() const { return in_other_threads_; }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  mutable std::atomic<bool> in_other_threads_ = false;
};

}  // namespace

TEST_CASE("OpenMP's threads flush subnormal numbers") {
  std::array<bool, 4> flushed{};
#pragma omp parallel num_threads(4)
  flushed[static_cast<std::size_t>(omp_get_thread_num())] = computes_with_zeros();
  CHECK(flushed == std::array{true, true, true, true});
}

TEST_CASE("oneDNN's threads flush subnormal numbers") {
  if (test::on_gpu()) return;
  const auto device = test::make_device(4);
  constexpr std::size_t kBatch = 256, kFeatures = 64;
  const TensorSpec input = device->plain({kBatch, kFeatures}, DataType::f32);
  const auto dense = device->plan(Dense{kFeatures}, {input}, Mode::inference, {});
  const auto filled = [&](const TensorSpec& spec, float value) {
    Buffer memory = device->allocate(spec.layout->bytes());
    device->write(std::vector<float>(elements(spec.shape), value), spec, memory.view());
    return memory;
  };
  const Buffer x = filled(input, 1e-30f), weight = filled(dense->parameters()[0], 1e-10f),
               bias = filled(dense->parameters()[1], 0), y = filled(dense->output(), 1),
               scratch = device->allocate(dense->info().scratch_bytes);
  dense->bind({.inputs = {x.view()},
               .output = y.view(),
               .parameters = {weight.view(), bias.view()},
               .parameter_gradients = {},
               .input_gradients = {DeviceView{}},
               .output_gradient = {},
               .scratch = scratch.view()});
  dense->forward();
  std::vector<float> found(kBatch * kFeatures);
  device->read(dense->output(), y.view(), found);
  CHECK(found == std::vector<float>(found.size(), 0));
}

TEST_CASE("the all-reduce thread flushes subnormal numbers") {
  std::vector<Observed::Use> uses;
  std::vector<float> values(100'000, 1e-30f);  // enough to wake the thread
  {
    const auto context = std::make_shared<AllReduceContext>(100);
    const std::unique_ptr<AllReduce> worker =
        std::make_unique<AllReduceWorker>(std::make_unique<Observed>(uses, context), "observed", "tested");
    const AllReduce::Ticket ticket = worker->enqueue(view_of(values));
    while (worker->progress().snapshot().begun == 0)  // so that this thread does not run it
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    worker->wait(ticket);
  }
  REQUIRE(uses.size() == 1);
  CHECK(uses[0].thread != std::this_thread::get_id());
  CHECK(uses[0].flushes);
  CHECK(values == std::vector<float>(values.size(), 0));
}

TEST_CASE("the loader's threads flush subnormal numbers") {
  const ObservedImages images;
  Loader loader(images, plan_input({}, images.info(), Purpose::training, 2),
                {.seed = 1, .global_batch = 64, .start = {}});
  const Batch& batch = loader.next();
  REQUIRE(!batch.images.empty());
  CHECK(std::ranges::count(batch.images, 1) == std::ssize(batch.images));
  CHECK(images.in_other_threads());
}

TEST_CASE("momentum decays to zero if gradients stop") {
  if (test::on_gpu()) return;  // its kernels are not compiled with this mode
  const UpdateRule rule = GENERATE(UpdateRule(Sgd{0.9f}), UpdateRule(Lars{0.9f}), UpdateRule(AdamW{0.9f, 0.9f}));
  Graph graph({6, 6, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  x = graph.add("dense", Dense{700}, {x});  // shared by the threads
  graph.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const auto device = test::make_device(2);
  Model model(*device, graph, Mode::training, 2);
  Parameters& parameters = model.parameters();
  Optimizer optimizer(*device, parameters, rule, 0.1f);
  parameters.initialize(1);
  for (int step = 0; step < 1000; ++step) {
    if (step < 2)
      for (const Parameter& p : parameters.all())
        device->write(std::vector<float>(elements(p.spec.shape), step == 0 ? 1e-3f : 0), p.spec,
                      parameters.gradient(p));
    optimizer.begin_step();
    optimizer.update({0, parameters.weights().bytes / sizeof(float)});
  }
  for (std::size_t state = 0; state < optimizer.states(); ++state)
    CHECK(std::ranges::count_if(test::floats_of(*device, optimizer.state(state)), is_subnormal) == 0);
}

TEST_CASE("a thread that does not flush subnormal numbers is detected") {
  omp_set_num_threads(3);
  expect_flushed_subnormals();
  const auto set = [](bool flush) {
#pragma omp parallel
    if (omp_get_thread_num() == 1) _MM_SET_FLUSH_ZERO_MODE(flush ? _MM_FLUSH_ZERO_ON : _MM_FLUSH_ZERO_OFF);
  };
  set(false);
  const std::string complaint = test::error_of([] { expect_flushed_subnormals(); });
  set(true);
  CHECK_THAT(complaint, Catch::StartsWith("1 of 3 threads do not flush subnormal numbers to zero"));
  expect_flushed_subnormals();
}

}  // namespace annulus
