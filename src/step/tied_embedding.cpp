#include "src/step/tied_embedding.h"

namespace annulus {

TiedEmbedding::TiedEmbedding(const StepTools& tools, Passes& passes, std::size_t tokens)
    : GradientExchange(passes),
      model_(tools.model),
      rows_(model_.device(), tools.all_reduce, model_.graph().tokens().vocabulary, model_.embedding_gradient()->width,
            tokens) {}

void TiedEmbedding::backward(const Batch& batch, const BatchPart& part, std::size_t samples,
                             const Network::Ready& ready) {
  passes_.backward(part, samples, [](std::size_t, const std::optional<Mark>&) {});
  if (part.samples.size() > 0) rows_.add_own(windows(batch, part), form(), *passes_.network(part).embedding_gradient());
  ready(model_.parameters().gradients().bytes / sizeof(float), {});
}

std::span<const std::int32_t> TiedEmbedding::windows(const Batch& batch, const BatchPart& part) const {
  if (part.samples.size() == 0) return {};
  return windows_in(samples_of(batch, part));
}

void TiedEmbeddingRows::begin(const Batch& batch, const BatchPart& last) {
  last_ = last;
  windows_ = windows(batch, last);
  sent_tokens_ = rows_.send_tokens(windows_, form());
}

void TiedEmbeddingRows::backward(const Batch& batch, const BatchPart& part, std::size_t samples,
                                 const Network::Ready& ready) {
  if (part.last)
    passes_.backward(part, samples, ready);
  else
    TiedEmbedding::backward(batch, part, samples, ready);
}

void TiedEmbeddingRows::end() {
  clock_.add(StepClock::Kind::interruption, clock_.wait_within_pass([&] { all_reduce_.wait(sent_tokens_); }));
  Network::EmbeddingGradient gradient = *model_.embedding_gradient();  // for an empty share, without rows
  if (last_.samples.size() > 0) gradient = *passes_.network(last_).embedding_gradient();
  sent_rows_ = rows_.send_rows(windows_, form(), gradient);
}

void TiedEmbeddingRows::complete() {
  clock_.wait_within_pass([&] { all_reduce_.join(sent_rows_); });
  clock_.activity().enter(Activity::Phase::optimizer);
  clock_.time(StepClock::Kind::optimizer, [&] { rows_.add_rows(model_.embedding_gradient()->table); });
}

Range tied_table(const Model& model) {
  const auto table = find_tied_embedding(model.graph());
  for (const Parameter& p : model.parameters().all())
    if (p.name == table && p.role != Role::frozen)
      return {p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)};
  return {};
}

}  // namespace annulus
