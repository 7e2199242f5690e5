#pragma once

#include "collectives/pipeline_link.h"
#include "src/step/gradient_exchange.h"
#include "src/step/step_clock.h"
#include "src/step/step_tools.h"

namespace annulus {

// For a stage of a pipeline: links the model to its neighbours, and adds up what each stage has of its own.
class StageExchange final : public GradientExchange {
 public:
  // All references must outlive the exchange.
  StageExchange(PipelineLink& link, const StepTools& tools, Passes& passes, StepClock& clock);

  void complete() override;
  void agree(LossScaling& scaling) override;
  void sum(std::span<double> metrics) override;

 private:
  void link_model();
  double sum_squares(double squares);
  void sum_flag(DeviceView value);

  PipelineLink& link_;
  Model& model_;
  Optimizer& optimizer_;
  StepClock& clock_;
  const Range table_;  // see tied_table(); the first stage and the last one have it
};

}  // namespace annulus
