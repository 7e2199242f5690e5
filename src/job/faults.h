#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"

namespace annulus {

class Device;
class Model;

// A fault injected for tests (--inject).
struct Fault {
  enum class Kind {
    kill,   // the process dies silently
    delay,  // the rank is slow
    hang,   // the rank stops making progress
    flip,   // a bit flips in memory
    wrong   // from this step on, a bit is wrong in each part's gradients
  };
  Kind kind;
  int rank;
  std::optional<std::uint64_t> step;  // the fault happens before this step; none: before every step
  double seconds = 0;                 // a delay's duration
  // For kill and delay, instead: the stage of the checkpoint after the step: written, renamed or linked
  // (src/checkpoint/checkpoint_folder.h); or for step 0 a stage of the start-up: compared, claimed or planned.
  std::string at{};

  // For flip: which bit.
  std::string in = "weights";  // weights, state, average; or bucket: instead, a sum of gradients in the step
  std::size_t bucket = 0;
  std::optional<std::size_t> element{};  // a float in the array; none: the first that training uses
  int bit = 20;
  std::size_t times = 1;  // as often, if the step is repeated
};

// The arrays in which bits flip. `state`, `average`: empty if there are none.
struct FaultTargets {
  Model& model;
  DeviceView state{}, average{};
};

// Parses "kill:rank=1,step=30", "delay:rank=1,seconds=0.01" (every step), "delay:rank=1,step=5,seconds=2",
// "hang:rank=1,step=5", "wrong:rank=1,step=5", "kill:rank=0,step=8,at=renamed", "kill:rank=1,step=0,at=claimed",
// "flip:rank=1,step=7", "flip:rank=1,step=7,in=bucket,bucket=2,element=99,bit=31,times=2". Throws Error naming the
// mistake.
Fault parse_fault(const std::string& text);

// Injects the faults for this rank and step.
void inject(std::vector<Fault>& faults, int rank, std::uint64_t step, const FaultTargets& targets);

// Injects the faults in gradients, in floats, that have been computed.
void inject_into(const Range& computed, const std::vector<Fault>& faults, int rank, std::uint64_t step, Model& model);

// Injects the flips in a bucket's sum.
void inject_into(DeviceView sum, std::size_t bucket, std::vector<Fault>& faults, int rank, std::uint64_t step,
                 Device& device);

// Injects the faults that strike while a checkpoint is written, or at the start.
void inject_at(const std::vector<Fault>& faults, int rank, std::uint64_t step, std::string_view at);

}  // namespace annulus
