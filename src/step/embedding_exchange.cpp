#include "src/step/embedding_exchange.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {

EmbeddingExchange::EmbeddingExchange(Device& device, AllReduce& all_reduce, std::size_t vocabulary, std::size_t width,
                                     std::size_t rows)
    : device_(device),
      all_reduce_(all_reduce),
      vocabulary_(vocabulary),
      width_(width),
      marks_(all_reduce.allocate(vocabulary * sizeof(float))),
      rows_(all_reduce.allocate(std::min(rows, vocabulary) * width * sizeof(float))),
      index_(device.allocate(std::max(rows, vocabulary) * sizeof(std::int32_t))),
      marked_(vocabulary),
      place_(vocabulary) {
  for (std::vector<std::int32_t>* list : {&tokens_, &places_, &all_}) list->reserve(std::max(rows, vocabulary));
}

void EmbeddingExchange::add_own(std::span<const std::int32_t> windows, const WindowForm& form,
                                const Network::EmbeddingGradient& gradient) {
  take_tokens(windows, form, vocabulary_, 0, tokens_);
  add(gradient.rows, gradient.type, tokens_, gradient.table);
}

AllReduce::Ticket EmbeddingExchange::send_tokens(std::span<const std::int32_t> windows, const WindowForm& form) {
  take_tokens(windows, form, vocabulary_, 0, tokens_);
  std::ranges::fill(marked_, 0.0f);
  for (const std::int32_t token : tokens_)
    if (token >= 0) marked_[static_cast<std::size_t>(token)] = 1;
  device_.upload(std::as_bytes(std::span(marked_)), marks_);
  return all_reduce_.enqueue(marks_, {.bucket = AllReduce::kWithinPass});
}

AllReduce::Ticket EmbeddingExchange::send_rows(std::span<const std::int32_t> windows, const WindowForm& form,
                                               const Network::EmbeddingGradient& gradient) {
  // While a GPU still computes backward, the host prepares what follows.
  device_.peek(marks_, std::as_writable_bytes(std::span(marked_)));
  all_.clear();
  for (std::size_t token = 0; token < vocabulary_; ++token) {
    place_[token] = marked_[token] > 0 ? static_cast<std::int32_t>(all_.size()) : -1;
    if (marked_[token] > 0) all_.push_back(static_cast<std::int32_t>(token));
  }
  if (rows().bytes > rows_.bytes) fail("a step has {} different tokens, but was planned for fewer", all_.size());
  take_tokens(windows, form, vocabulary_, 0, tokens_);
  places_.clear();
  for (const std::int32_t token : tokens_) places_.push_back(token < 0 ? -1 : place_[static_cast<std::size_t>(token)]);
  device_.zero(rows());
  if (!places_.empty()) add(gradient.rows, gradient.type, places_, rows());
  return all_reduce_.enqueue(rows(), {.next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass});
}

void EmbeddingExchange::add_rows(DeviceView table) {
  if (!all_.empty()) add(rows(), DataType::f32, all_, table);
}

// At least one, so that there is something to all-reduce if all tokens of a step are missing.
DeviceView EmbeddingExchange::rows() const {
  return rows_.slice(0, std::max<std::size_t>(1, all_.size()) * width_ * sizeof(float));
}

void EmbeddingExchange::add(DeviceView from, DataType type, std::span<const std::int32_t> index, DeviceView to) {
  const DeviceView indices = index_.view().slice(0, index.size_bytes());
  device_.upload(std::as_bytes(index), indices);
  device_.add_rows(from, type, indices, width_, to);
}

}  // namespace annulus
