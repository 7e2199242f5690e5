#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/base/error.h"
#include "models/network/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// Returns a checksum of the parameters, of the optimizer's state unless ranks keep different parts of it, and of the
// moving average.
std::uint64_t checksum(Model& model, const Optimizer& optimizer);

// Values that must be bit-identical on all ranks differ. Thrown on every rank, at the same point.
class ReplicasDiffer : public Error {
 public:
  // `sound_until`: see below.
  ReplicasDiffer(const std::string& finding, std::vector<int> suspects, std::uint64_t sound_until = UINT64_MAX)
      : Error(finding + ", and resume from a checkpoint, if there is one"),
        finding_(finding),
        suspects_(std::move(suspects)),
        sound_until_(sound_until) {}

  // Returns the text without the advice to resume.
  const std::string& finding() const { return finding_; }

  // The ranks in the job without the majority's bits; all ranks if there is no majority.
  const std::vector<int>& suspects() const { return suspects_; }

  // States after later steps may be wrong although they are the same on all ranks.
  std::uint64_t sound_until() const { return sound_until_; }

 private:
  std::string finding_;
  std::vector<int> suspects_;
  std::uint64_t sound_until_;
};

// A value that differs between ranks, and each rank's hash.
struct Difference {
  std::string what;
  std::vector<std::uint64_t> hashes;
};

inline bool same(const std::vector<std::uint64_t>& hashes) {
  return std::ranges::adjacent_find(hashes, std::ranges::not_equal_to{}) == hashes.end();
}

// What differed if find_difference() finds nothing any more.
constexpr const char* kNothingLasting = "values that are the same again";

// Returns the first difference between the replicas: in a parameter, an optimizer state or the moving average; none if
// they are bit-identical. Parts that are on a single rank are not compared. Collective.
std::optional<Difference> find_difference(const World& world, Model& model, const Optimizer& optimizer);

// Throws ReplicasDiffer, naming what differs, and the ranks with their hosts and cores. Collective. `what`: "the
// replicas differ after step 7".
[[noreturn]] void blame(const World& world, const std::string& what, const Difference& difference);
// The same for given ranks. `how`: "compute different gradients".
[[noreturn]] void blame(const World& world, const std::string& what, const std::vector<std::size_t>& ranks,
                        const std::string& how, std::uint64_t sound_until = UINT64_MAX);

// Checks the replicas before parameters are saved or evaluated: compares their checksums over all ranks. Throws
// ReplicasDiffer with `when` if they are not bit-identical, or Error on every rank if a parameter is not finite, naming
// it (a NaN need not reach the loss: a vendor's ReLU may take it for zero). Collective.
void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when);

}  // namespace annulus
