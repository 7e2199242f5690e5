#pragma once

#include <memory>
#include <string>

#include "collectives/call.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/shared_memory.h"
#include "collectives/world/world.h"

namespace annulus {

// Runs calls, one at a time.
class CallAlgorithm {
 public:
  // `memory`: which the node's ranks share; null if there is none.
  CallAlgorithm(std::string description, std::shared_ptr<AllReduceContext> context, SharedMemory* memory)
      : description_(std::move(description)), context_(std::move(context)), memory_(memory) {}
  virtual ~CallAlgorithm() = default;

  const std::string& description() const { return description_; }  // with the reason for it
  AllReduceContext& context() const { return *context_; }
  SharedMemory* memory() const { return memory_; }

  virtual void run(const Call& call) = 0;

 private:
  const std::string description_;
  const std::shared_ptr<AllReduceContext> context_;
  SharedMemory* const memory_;
};

// Returns the best algorithm that the ranks' placement allows. Collective.
std::unique_ptr<CallAlgorithm> make_call_algorithm(const World& world);
// Returns the algorithm of a single node, which needs no MPI. Throws NoSharedMemory. Collective.
std::unique_ptr<CallAlgorithm> make_node_call_algorithm(const World& world);

}  // namespace annulus
