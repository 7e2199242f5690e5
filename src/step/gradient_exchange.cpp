#include "src/step/gradient_exchange.h"

#include "src/step/stage_exchange.h"
#include "src/step/step_options.h"
#include "src/step/tied_embedding.h"

namespace annulus {

std::function<void()> make_tick(Activity& activity, PipelineLink* link) {
  if (link == nullptr) return [&activity] { activity.tick(); };
  return [&activity, link] {
    activity.tick();
    link->progress();
  };
}

std::unique_ptr<GradientExchange> make_exchange(const StepTools& tools, const StepOptions& options, Passes& passes,
                                                StepClock& clock) {
  Model& model = tools.model;
  if (options.pipeline != nullptr) return std::make_unique<StageExchange>(*options.pipeline, tools, passes, clock);
  if (!model.embedding_gradient()) return std::make_unique<GradientExchange>(passes);
  const std::size_t tokens = options.global_batch * model.graph().tokens().length;
  if (options.shards > 0) return std::make_unique<TiedEmbedding>(tools, passes, tokens);
  return std::make_unique<TiedEmbeddingRows>(tools, passes, clock, tokens);
}

}  // namespace annulus
