#include "collectives/library/call_algorithm.h"

#include <fmt/format.h>

#include <cstring>

#include "collectives/host/host_all_reduce.h"
#include "collectives/host/message_calls.h"
#include "collectives/host/shared_memory_all_reduce.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

class Alone final : public CallAlgorithm {
 public:
  Alone() : CallAlgorithm("copies (a single rank)", std::make_shared<AllReduceContext>(0), nullptr) {}

  void run(const Call& call) override {
    if (call.count > 0 && call.send != call.receive)
      std::memcpy(call.receive, call.send, call.count * call.element_bytes());
  }
};

class OneNode final : public CallAlgorithm {
 public:
  explicit OneNode(std::unique_ptr<SharedMemoryAllReduce> calls)
      : CallAlgorithm("shared memory (all ranks are on one node)", calls->context(), calls->shared_memory()),
        calls_(std::move(calls)) {}

  void run(const Call& call) override { calls_->run(call); }

 private:
  const std::unique_ptr<SharedMemoryAllReduce> calls_;
};

class SeveralNodes final : public CallAlgorithm {
 public:
  SeveralNodes(const World& world, HostAllReduce sums)
      : CallAlgorithm(fmt::format("float32 sums: {} ({}); others: MPI", sums.name, sums.why), sums.algorithm->context(),
                      sums.algorithm->shared_memory()),
        calls_(world, std::move(sums.algorithm)) {}

  void run(const Call& call) override { calls_.run(call); }

 private:
  MessageCalls calls_;
};

}  // namespace

std::unique_ptr<CallAlgorithm> make_node_call_algorithm(const World& world) {
  if (world.size() == 1) return std::make_unique<Alone>();
  auto context = std::make_shared<AllReduceContext>(polls_on_this_node(world.local_size()), world.interruption());
  auto calls = std::make_unique<SharedMemoryAllReduce>(world.node(), nullptr, context);
  context->backoff.set_urgent(true);
  calls->measure_small();
  context->backoff.set_urgent(false);
  return std::make_unique<OneNode>(std::move(calls));
}

std::unique_ptr<CallAlgorithm> make_call_algorithm(const World& world) {
  if (world.one_node()) try {
      return make_node_call_algorithm(world);
    } catch (const NoSharedMemory&) {  // on all ranks
    }
  return std::make_unique<SeveralNodes>(world, make_host_all_reduce("auto", world, WireType::fp32, std::nullopt));
}

}  // namespace annulus
