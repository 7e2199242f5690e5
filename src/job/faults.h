#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

class Model;

// What can go wrong on a machine, made to happen for the tests (--inject).
struct Fault {
  enum class Kind {
    kill,   // the process dies without a word
    delay,  // the rank is slow
    hang,   // the rank makes no progress any more
    flip    // one bit of a weight turns over
  };
  Kind kind;
  int rank;
  std::optional<std::uint64_t> step;  // before which it happens; none: before every step
  double seconds = 0;                 // of a delay
  std::string at{};                   // not before the step but within the checkpoint after it, when it is written,
                                      // renamed or linked (src/checkpoint/checkpoint_folder.h); of kill only
};

// "kill:rank=1,step=30", "delay:rank=1,seconds=0.01" (every step), "delay:rank=1,step=5,seconds=2",
// "hang:rank=1,step=5", "flip:rank=1,step=7", "kill:rank=0,step=8,at=renamed". Throws Error saying what is wrong with
// the text.
Fault parse_fault(const std::string& text);

// Makes those of `faults` happen that are meant for this rank and step.
void inject(const std::vector<Fault>& faults, int rank, std::uint64_t step, Model& model);

// Those within the writing of a checkpoint.
void inject_at(const std::vector<Fault>& faults, int rank, std::uint64_t step, std::string_view at);

}  // namespace annulus
