#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "kernels/update.h"
#include "src/step/passes.h"

namespace annulus {

class PipelineLink;
class StepClock;
struct StepOptions;
struct StepTools;

// What ranks exchange of a step's gradients and metrics besides the buckets: by default nothing. A network or options
// that need more have a decorated one, made with the step.
class GradientExchange {
 public:
  explicit GradientExchange(Passes& passes) : passes_(passes) {}
  virtual ~GradientExchange() = default;

  // Before the passes of a step. `last`: the part whose gradients are sent while they are computed.
  virtual void begin(const Batch& /*batch*/, const BatchPart& /*last*/) {}
  // A part's backward pass; see Passes::backward().
  virtual void backward(const Batch& /*batch*/, const BatchPart& part, std::size_t samples,
                        const Network::Ready& ready) {
    passes_.backward(part, samples, ready);
  }
  // After the passes.
  virtual void end() {}
  // Completes the gradients of an embedding that is also the head, whose buckets have been all-reduced.
  virtual void complete() {}
  // Agrees whether some gradient overflows, if other ranks have other parameters.
  virtual void agree(LossScaling& /*scaling*/) {}
  // Adds up the numbers of ranks that have other parameters, in place.
  virtual void sum(std::span<double> /*metrics*/) {}

 protected:
  Passes& passes_;
};

// Makes the exchange of a synchronous step. All must outlive it.
std::unique_ptr<GradientExchange> make_exchange(const StepTools& tools, const StepOptions& options, Passes& passes,
                                                StepClock& clock);
// Returns the function to call after each layer: it reports progress, and polls the pipeline's messages.
std::function<void()> make_tick(Activity& activity, PipelineLink* link);

}  // namespace annulus
