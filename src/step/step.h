#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "collectives/gradient_buckets.h"
#include "src/data/loader.h"
#include "src/step/gradient_guard.h"
#include "src/step/gradient_noise.h"
#include "src/step/kept_state.h"
#include "src/step/parts.h"
#include "src/step/passes.h"
#include "src/step/step_clock.h"
#include "src/step/step_metrics.h"
#include "src/step/step_options.h"
#include "src/step/step_tools.h"

namespace annulus {

// A data-parallel training step, or what counts as several: every rank computes its share of a batch, and then all
// ranks have the same weights, or will have after finish().
class Step {
 public:
  // What a step calls while it runs; by default nothing.
  struct Hooks {
    // Returns the next step's batch, or null if it is not ready: a step begins to copy it to the device before it waits
    // for all-reduces.
    std::function<const Batch*()> peek_next = [] { return nullptr; };
    // Called in steps in which a rank requested it (ControlFlags::copy), when all ranks have completed the previous
    // step and this one has not changed any parameter yet.
    std::function<void()> before_update = [] {};
    // Called before the second and each further part of a share whose parts have updates of their own.
    std::function<void(std::size_t number)> before_part = [](std::size_t) {};
    // Called by steps that can do without some ranks, if the exchange of the metrics was interrupted. Returns whether
    // all ranks that are left have computed their shares, and the all-reduce continues with these.
    std::function<bool()> regroup = [] { return false; };
    // Called before the update if StepOptions::finite_gradients.
    JudgeGradients judge = [](const Parameter*) { return true; };
    // Called before a step; `batch`: this rank's share.
    std::function<void(const Batch& batch)> begin = [](const Batch&) {};
    // Called when backward has completed a part's first `count` gradients.
    std::function<void(const BatchPart& part, std::size_t count)> computed = [](const BatchPart&, std::size_t) {};
    // Called when a bucket has been all-reduced, before its values are used.
    std::function<void(std::size_t bucket, DeviceView sum)> reduced = [](std::size_t, DeviceView) {};
    // Called at the end of a step, when all buckets that are not deferred have been updated.
    std::function<void()> updated = [] {};
    // Called before a step throws because training has diverged.
    std::function<void()> diverged = [] {};
  };
  Hooks hooks;

  virtual ~Step() = default;
  Step(const Step&) = delete;

  // To be called as soon as the next batch is planned, even if this rank still waits for its samples: it may have to
  // work for other ranks.
  virtual void expect(const StepPlan& /*next*/) {}

  // Runs a step. `batch`: this rank's share, possibly empty. `flags` are summed over the ranks together with the
  // gradients; the caller acts on them. Throws Error on every rank if the loss is not finite, before any parameter has
  // changed, or if an earlier update of any rank made a parameter that is not: a NaN need not reach the loss.
  // `begun`: when the step began on the device's lane.
  //
  // On a GPU a synchronous step may still be running when this returns: the loss is known early in backward, and the
  // rest of the step has been queued on the lane. The step's times are booked during the next step.
  StepMetrics run(const Batch& batch, const ControlFlags& flags, const Mark& begun);

  // Computes the gradients for a part in another rank's share. REQUIRES: finish() was called, and one of this rank's
  // parts has as many samples.
  void compute_again(const Batch& part);

  // Completes the last step. run() returns while the all-reduces of deferred buckets (see GradientBuckets) are still
  // running and their parameters not yet updated, or while weights are being gathered; normally the next step completes
  // them. This function does so, and waits for the device; call it before reading the parameters or closing the ledger.
  // Collective.
  virtual void finish() = 0;

  // Continues after a step was left by an exception because ranks were lost. The optimizer's state and the weights are
  // set afterwards. REQUIRES: the all-reduce continues, too.
  virtual void continue_with(const StepOptions& options) = 0;

  // Waits for all all-reduces of a step that all ranks left by an exception, at the same point after backward,
  // and zeroes the gradients. Collective. Then continue_with() is to be called.
  void await_all_reduces();

  // Whether the parameters follow a whole number of steps, also if an exception ended a step.
  virtual bool between_steps() const = 0;
  // Whether ranks have weights of their own until finish().
  bool weights_apart() const { return traits_.weights_apart; }
  // Whether Hooks::before_update is called. Otherwise the state can only be copied between steps, after finish() on all
  // ranks; and the parameters are not enough to continue from after a rank was lost.
  bool copied_within_steps() const { return !traits_.many_updates; }
  // Takes the norms of this rank's gradients, for the gradient-noise scale; null if they cannot be taken.
  virtual PartNormProbe* part_norms() { return nullptr; }
  virtual KeptState& kept_state() = 0;

  const GradientBuckets& buckets() const { return buckets_; }
  const PartPlan& part_plan() const { return parts_; }
  // Returns how long this rank took for its own part of the last step: until it had nothing left but to wait for other
  // ranks. REQUIRES: the step's times have been booked.
  double own_seconds() const { return clock_.own_seconds(); }

 protected:
  // What differs between kinds of steps.
  struct Traits {
    bool meets = true;           // see StepClock
    bool many_updates = false;   // the parts of a share have updates of their own, and marks are kept part by part
    bool weights_apart = false;  // see weights_apart()
  };
  Step(const StepTools& tools, GradientBuckets buckets, const PartPlan& parts, std::function<void()> tick,
       const Traits& traits);

  // The two halves of run(). `parts`: of this rank's share; the first one is loaded. Computes the parts, and begins to
  // send the metrics.
  virtual void compute(const Batch& batch, std::span<const BatchPart> parts, const ControlFlags& flags) = 0;
  // Waits for the metrics, and updates.
  virtual StepMetrics conclude() = 0;

  const StepTools tools_;
  Device& device_;
  StepClock clock_;
  GradientBuckets buckets_;
  MetricsSlots slots_;
  PartPlan parts_;
  Passes passes_;

 private:
  void prefetch();
  Mark kept(const Mark& mark) const { return traits_.many_updates ? device_.timed(mark) : mark; }

  const Traits traits_;
};

}  // namespace annulus
