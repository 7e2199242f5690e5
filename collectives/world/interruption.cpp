#include "collectives/world/interruption.h"

#include <algorithm>

namespace annulus {

// A rank may be lost while a section ends: either this thread sees that the rank is needed now, or the thread that ends
// the section sees that it is lost.
void Interruption::lose(std::size_t rank) {
  lost_[rank] = true;
  if (!dispensable_[rank]) interrupted_ = true;
}

void Interruption::begin_section(std::uint64_t number, std::span<const int> dispensable) {
  section_ = number;
  for (const int rank : dispensable) dispensable_[static_cast<std::size_t>(rank)] = true;
  within_section_ = true;
  // Other ranks may have begun this section before the loss of a rank that it can do without, and do not begin it
  // again.
  bool needs_lost = false;
  for (std::size_t rank = 0; rank < lost_.size(); ++rank) needs_lost |= lost_[rank] && !dispensable_[rank];
  if (!needs_lost) interrupted_ = false;
}

void Interruption::end_section() {
  within_section_ = false;
  for (auto& rank : dispensable_) rank = false;
  if (std::ranges::any_of(lost_, [](const auto& lost) { return lost.load(); })) interrupted_ = true;
}

void Interruption::reset() {
  for (auto* flags : {&lost_, &dispensable_})
    for (auto& rank : *flags) rank = false;
  within_section_ = false;
  interrupted_ = false;
}

}  // namespace annulus
