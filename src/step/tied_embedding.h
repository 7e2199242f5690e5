#pragma once

#include <memory>
#include <span>

#include "src/step/embedding_exchange.h"
#include "src/step/gradient_exchange.h"
#include "src/step/step_clock.h"
#include "src/step/step_tools.h"

namespace annulus {

// For a token embedding that is also the head. Backward leaves out the gradient's rows that belong to the embedded
// tokens (Network::EmbeddingGradient); this class adds every part's rows to the whole table.
class TiedEmbedding : public GradientExchange {
 public:
  // `tokens`: the most of a step on all ranks. REQUIRES: the model's networks have an embedding gradient. Collective.
  TiedEmbedding(const StepTools& tools, Passes& passes, std::size_t tokens);

  void backward(const Batch& batch, const BatchPart& part, std::size_t samples, const Network::Ready& ready) override;

 protected:
  std::span<const std::int32_t> windows(const Batch& batch, const BatchPart& part) const;
  WindowForm form() const { return model_.graph().tokens().form(); }

  Model& model_;
  EmbeddingExchange rows_;
};

// All-reduces the last part's rows apart from the table, so that the table need not wait for the end of backward.
class TiedEmbeddingRows final : public TiedEmbedding {
 public:
  TiedEmbeddingRows(const StepTools& tools, Passes& passes, StepClock& clock, std::size_t tokens)
      : TiedEmbedding(tools, passes, tokens), all_reduce_(tools.all_reduce), clock_(clock) {}

  void begin(const Batch& batch, const BatchPart& last) override;
  void backward(const Batch& batch, const BatchPart& part, std::size_t samples, const Network::Ready& ready) override;
  void end() override;
  void complete() override;

 private:
  AllReduce& all_reduce_;
  StepClock& clock_;
  BatchPart last_;
  std::span<const std::int32_t> windows_;  // of the last part
  AllReduce::Ticket sent_tokens_ = 0, sent_rows_ = 0;
};

// Returns the position of the gradient of an embedding that is also the head, in floats; empty if there is none.
Range tied_table(const Model& model);

}  // namespace annulus
