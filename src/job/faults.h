#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

class Model;

// A fault injected for tests (--inject).
struct Fault {
  enum class Kind {
    kill,   // the process dies silently
    delay,  // the rank is slow
    hang,   // the rank stops making progress
    flip    // a bit in a weight flips
  };
  Kind kind;
  int rank;
  std::optional<std::uint64_t> step;  // the fault happens before this step; none: before every step
  double seconds = 0;                 // a delay's duration
  // For kill and delay, instead: the stage of the checkpoint after the step: written, renamed or linked
  // (src/checkpoint/checkpoint_folder.h); or for step 0 a stage of the start-up: compared, claimed or planned.
  std::string at{};
};

// Parses "kill:rank=1,step=30", "delay:rank=1,seconds=0.01" (every step), "delay:rank=1,step=5,seconds=2",
// "hang:rank=1,step=5", "flip:rank=1,step=7", "kill:rank=0,step=8,at=renamed", "kill:rank=1,step=0,at=claimed". Throws
// Error naming the mistake.
Fault parse_fault(const std::string& text);

// Injects the faults for this rank and step.
void inject(const std::vector<Fault>& faults, int rank, std::uint64_t step, Model& model);

// Injects the faults that strike while a checkpoint is written, or at the start.
void inject_at(const std::vector<Fault>& faults, int rank, std::uint64_t step, std::string_view at);

}  // namespace annulus
