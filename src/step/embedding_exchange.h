#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/all_reduce.h"
#include "models/network/network.h"

namespace annulus {

// All-reduces the part of a shared token embedding's gradient that backward leaves out (Network::EmbeddingGradient). In
// the whole table, only the rows of the global batch's tokens are not 0, so only these are sent: with 1,024 tokens,
// 768 wide, 3 MB instead of GPT-2's 154 MB.
//
//   tokens   each rank marks its own in an array {vocabulary}; all-reduced, it has all ranks' tokens. It depends on
//            the batch only, so it is sent before forward
//   rows     each rank adds up the rows of its tokens in an array {tokens of all ranks, width}, which is all-reduced
//            after backward
//   table    each rank adds these rows, in the order of the tokens: bit-identical on all ranks
//
// A step calls send_tokens(), send_rows() and add_rows(), and in between waits for the tickets that they return. A rank
// without samples has no windows and no rows. Collective.
class EmbeddingExchange {
 public:
  // `rows`: the maximum number of tokens in a global batch. All references must outlive the exchange. Collective, as
  // AllReduce::allocate().
  EmbeddingExchange(Device& device, AllReduce& all_reduce, std::size_t vocabulary, std::size_t width, std::size_t rows);

  // Adds this rank's rows to the table. The gradient has rows for the tokens that a network reads.
  void add_own(std::span<const std::int32_t> windows, const WindowForm& form,
               const Network::EmbeddingGradient& gradient);

  AllReduce::Ticket send_tokens(std::span<const std::int32_t> windows, const WindowForm& form);
  // REQUIRES: the tokens of these windows have been sent, and their ticket has been waited for.
  AllReduce::Ticket send_rows(std::span<const std::int32_t> windows, const WindowForm& form,
                              const Network::EmbeddingGradient& gradient);
  // Adds the rows of all ranks to a table that has been all-reduced. REQUIRES: the rows' ticket has been joined.
  void add_rows(DeviceView table);

 private:
  void add(DeviceView from, DataType type, std::span<const std::int32_t> index, DeviceView to);
  DeviceView rows() const;  // of the tokens of all ranks

  Device& device_;
  AllReduce& all_reduce_;
  std::size_t vocabulary_, width_;
  DeviceView marks_, rows_;                          // in the all-reduce's memory
  Buffer index_;                                     // of the rows that are added
  std::vector<float> marked_;                        // marks_ on the host
  std::vector<std::int32_t> place_;                  // of a token's row in rows_; below 0 if no rank has it
  std::vector<std::int32_t> tokens_, places_, all_;  // embedded on this rank, their places, and all ranks' tokens
};

}  // namespace annulus
