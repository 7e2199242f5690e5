#include "src/step/stage_exchange.h"

#include <array>

#include "src/step/tied_embedding.h"

namespace annulus {

StageExchange::StageExchange(PipelineLink& link, const StepTools& tools, Passes& passes, StepClock& clock)
    : GradientExchange(passes),
      link_(link),
      model_(tools.model),
      optimizer_(tools.optimizer),
      clock_(clock),
      table_(tied_table(model_)) {
  link_model();
  optimizer_.include([this](double squares) { return sum_squares(squares); });
}

void StageExchange::link_model() {
  using enum PipelineLink::Neighbour;
  const auto receive = [this](PipelineLink::Neighbour from, const char* name) {
    return [this, from, name](DeviceView to) {
      clock_.wait(Activity::Phase::waiting_for_stage, name, [&] { link_.receive(to, from); });
    };
  };
  const auto send = [this](PipelineLink::Neighbour to) {
    return [this, to](DeviceView from) { link_.send(from, to); };
  };
  StageLinks links;
  if (link_.stage() > 0) {
    links.receive_input = receive(previous, "wait for previous stage");
    links.send_input_gradient = send(previous);
  }
  if (link_.stage() + 1 < link_.stages()) {
    links.send_output = send(next);
    links.receive_output_gradient = receive(next, "wait for next stage");
  }
  model_.link(links);
}

void StageExchange::complete() {
  if (table_.size() == 0) return;
  const LaneSpan span = clock_.span("add the embedding's gradients");
  const DeviceView table =
      model_.parameters().gradients().slice(table_.begin * sizeof(float), table_.size() * sizeof(float));
  clock_.wait_within_pass([&] { link_.add_other_end(table); });
}

void StageExchange::agree(LossScaling& scaling) {
  scaling.agree([this](DeviceView stages) { sum_flag(stages); });
}

void StageExchange::sum(std::span<double> metrics) {
  clock_.time(StepClock::Kind::neighbours, [&] { link_.sum(metrics); });
}

// Returns the sum of the squares of all stages' gradients, given that of this stage's. An embedding that the first
// stage shares with the last one counts once.
double StageExchange::sum_squares(double squares) {
  if (table_.size() > 0 && link_.stage() == 0) {
    optimizer_.add_squares(table_);
    squares -= optimizer_.take_squares();
  }
  std::array sum{squares};
  clock_.wait(Activity::Phase::waiting_for_stage, "wait for the stages' norms", [&] { link_.sum(sum); });
  return sum[0];
}

// Adds up a float of each stage, in place.
void StageExchange::sum_flag(DeviceView value) {
  float own = 0;
  model_.device().download(value, std::as_writable_bytes(std::span(&own, 1)));
  std::array sum{double{own}};
  clock_.wait(Activity::Phase::waiting_for_stage, "wait for the stages' flags", [&] { link_.sum(sum); });
  own = static_cast<float>(sum[0]);
  model_.device().upload(std::as_bytes(std::span(&own, 1)), value);
}

}  // namespace annulus
