#pragma once

#include <cstdint>
#include <optional>

#include "collectives/world/world.h"
#include "src/io/hash.h"
#include "src/step/replicas.h"
#include "src/step/step.h"

namespace annulus {

// Finds processors that compute wrong: a shard in kEvery is computed a second time, by another rank, and must have
// gradients with the same bits (train --verify --shards).
//
//   ranks              0         1         2
//   first shards       a         b         c       sent to the next rank before a step
//   computed again     c         a         b       before the step
//   in the step        a ...     b ...     c ...   then all hashes are compared
//
// A rank that computes wrong differs from both neighbours, and is named. With two ranks, or if a single bit flipped
// once, both ranks of a pair are named.
class ShardCheck {
 public:
  static constexpr std::size_t kEvery = 200;

  // Hooks into the step, after the Verifier. All references must outlive this, and this the step's last run.
  ShardCheck(const World& world, Model& model, const Optimizer& optimizer, Step& step, std::size_t shards);

  // Returns the last step in which a check found no difference. Later states may be wrong on all ranks.
  std::uint64_t sound_until() const { return sound_until_; }

  void forget() { next_ = 0; }  // see Verifier

 private:
  void begin(const Batch& batch);
  Batch of_previous_rank(const Batch& batch) const;
  void compute(const BatchPart& part, std::size_t count);
  void begin_hash();
  void end_step();
  [[noreturn]] void blame_ranks(const std::vector<std::size_t>& wrong) const;

  const World& world_;
  Model& model_;
  const Optimizer& optimizer_;
  Step& step_;
  const std::size_t shards_;
  std::optional<Hash> hash_;  // a first shard's gradients; none: they are not compared
  std::size_t hashed_ = 0;    // gradients
  std::uint64_t again_ = 0;   // the previous rank's
  std::uint64_t next_ = 0;    // the step of the next check
  std::uint64_t sound_until_;
};

}  // namespace annulus
