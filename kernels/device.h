#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/lane.h"
#include "kernels/base/tensor.h"
#include "kernels/operation.h"
#include "kernels/precision.h"
#include "kernels/update.h"

namespace annulus {

enum class Mode { training, inference };

// Where an operation finds its operands. Views are bound once, before the first step, and stay.
struct Bindings {
  std::vector<DeviceView> inputs;
  DeviceView output;
  std::vector<DeviceView> parameters;  // as declared by parameters(operation), float32
  std::vector<DeviceView> copies{};    // of them in the device's value type; empty views where that is float32
  // The rest is for Mode::training only.
  std::vector<DeviceView> parameter_gradients;  // float32
  std::vector<DeviceView> input_gradients;      // an empty view: nobody wants this one
  std::vector<bool> accumulate{};               // whether to add to it rather than write it; see adds_to_gradient()
  DeviceView output_gradient;                   // empty for the last operation
  DeviceView second_output_gradient{};          // to be added to it; empty but for what sums_output_gradients()
  DeviceView scratch{};                         // of scratch_bytes(), in every mode; others use it as well
};

// Adds a float32 array in the device's memory over all ranks, in place; in the lane's order.
using SumOverRanks = std::function<void(DeviceView)>;

// An operation planned on a device for fixed shapes: planned once, run every step. After bind(), running it
// allocates nothing but what the vendor's library keeps for its own bookkeeping.
class Op {
 public:
  virtual ~Op() = default;

  const TensorSpec& output() const { return output_; }
  const std::vector<TensorSpec>& parameters() const { return parameters_; }

  // What memory need not be kept, or can be used twice. An operation that does not say gets what it may ever want.
  virtual bool backward_reads_input(std::size_t /*input*/) const { return true; }
  virtual bool backward_reads_output() const { return true; }
  // Whether forward can write the output over this input, and backward this input's gradient over the output's.
  virtual bool output_may_overwrite(std::size_t /*input*/) const { return false; }
  virtual bool input_gradient_may_overwrite(std::size_t /*input*/) const { return false; }

  // Whether backward can add to this input's gradient as cheaply as write it.
  virtual bool adds_to_gradient(std::size_t /*input*/) const { return false; }
  // Whether backward takes the output's gradient as a sum of two.
  virtual bool sums_output_gradients() const { return false; }

  // Memory that it needs while it runs, forward or backward.
  virtual std::size_t scratch_bytes() const { return 0; }

  // The names that a CPU's library gives to the implementations that it runs, such as jit:avx2; none for our own.
  virtual std::vector<std::string> implementations() const { return {}; }

  // Whether it needs sums over the ranks in the middle of a pass; then `sum` makes them from now on, and every rank
  // runs the same operations in the same order. Without it this rank is the only one.
  virtual bool sums_over_ranks() const { return false; }
  virtual void sum_over_ranks(const SumOverRanks& /*sum*/) {}

  virtual void bind(const Bindings& bindings) = 0;
  virtual void forward() = 0;

  // Writes (never adds to, but where bound to accumulate) the gradients of the inputs that are wanted and of the
  // parameters. `sample_weight` is 1 / global batch: the loss's gradient is seeded with it, and batch statistics are
  // weighted by it times the batch. May use the output's gradient as scratch.
  virtual void backward(float sample_weight) = 0;

 protected:
  TensorSpec output_;
  std::vector<TensorSpec> parameters_;
};

// Work that is put on a device's lane at less cost than by doing it.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// Gradients in 16 bits with a small range are computed of the loss times a scale that keeps them within it. (By the
// time they are in the arena the scale is gone.) One that does not fit shows as infinite or NaN in the sums: then no
// rank updates anything in this step, and the scale is halved; after many good steps it is doubled.
// (Micikevicius et al., "Mixed precision training", ICLR 2018.)
class LossScaling {
 public:
  struct State {
    float scale = 65536;
    std::uint32_t good_steps = 0;  // since it changed
  };

  virtual ~LossScaling() = default;
  virtual void judge(DeviceView gradients) = 0;  // summed ones: all of a step's, before its first update
  virtual void conclude() = 0;                   // after its last one
  virtual State state() = 0;
  virtual void set_state(const State& state) = 0;
};

// One in-order lane of work on one processor. The seam between what is computed and how. On a GPU all but download(),
// read(), finish() and seconds() return before the work is done.
class Device : public Lane {
 public:
  virtual std::string description() const = 0;  // one line for the user: name, threads or memory, precision
  virtual DataType value_type() const { return DataType::f32; }  // of what flows through a network
  virtual bool shares_host_memory() const { return true; }       // its memory is the process's own

  // Plans an operation. Where `parameters` is not empty these are the layouts that its parameters already have.
  virtual std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                   const std::vector<TensorSpec>& parameters) = 0;
  // The segments are in the order of the arenas.
  virtual std::unique_ptr<Update> plan(const UpdateRule& rule, const UpdateArenas& arenas,
                                       const std::vector<UpdateSegment>& segments) = 0;

  // A plain, row-major tensor; and one as operations like what flows through a network.
  virtual TensorSpec plain(const Shape& shape, DataType type) = 0;
  virtual TensorSpec values(const Shape& shape) { return plain(shape, DataType::f32); }

  virtual Buffer allocate(std::size_t bytes) = 0;                           // zeroed, aligned for any use
  virtual void upload(std::span<const std::byte> host, DeviceView to) = 0;  // host may change once it returns
  virtual void download(DeviceView from, std::span<std::byte> host) = 0;
  // The same, but does not wait for the lane: for what no work on it still changes.
  virtual void peek(DeviceView from, std::span<std::byte> host) { download(from, host); }

  // From or to row-major host memory, whatever the layout and the type are. Padding is written as zeros.
  virtual void write(std::span<const float> host, const TensorSpec& spec, DeviceView to) = 0;
  virtual void read(const TensorSpec& spec, DeviceView from, std::span<float> host) = 0;

  // The flat kernels.
  virtual void zero(DeviceView to) = 0;
  virtual void add(DeviceView from, DeviceView to, DataType type) = 0;
  // float32: to += share (from - to), but not in a step that must not change anything (see LossScaling).
  virtual void follow(DeviceView from, DeviceView to, float share) = 0;
  virtual void exchange(DeviceView a, DeviceView b) = 0;           // their contents, float32
  virtual void narrow(DeviceView weights, DeviceView copies) = 0;  // float32 to the value type

  // Null where gradients need no scale.
  virtual LossScaling* loss_scaling() { return nullptr; }

  virtual void finish() {}  // until all work on the lane is done

  // Whether it gains from recordings of work; then record() takes down what work() would put on the lane, without
  // doing it. What has never been done before may not be recordable.
  virtual bool records() const { return false; }
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work);
};

// Which device a rank wants, and how it shall compute.
struct DeviceRequest {
  std::string name = "auto";             // "cpu", "cuda", or "auto": a GPU where there is one
  int threads = 0;                       // of the CPU; 0: as many as this process may use
  std::optional<Precision> precision{};  // bf16 on a GPU and fp32 on a CPU, if not set
  int gpu = 0;                           // its number
  std::filesystem::path tuning{};        // file of measured convolution plans; empty: heuristics choose
};

// Throws Error where there is no such device here, or where it cannot compute like that.
std::unique_ptr<Device> make_device(const DeviceRequest& request);
std::unique_ptr<Device> make_device(const std::string& name, int threads = 0);

// How many processors the affinity mask gives this process.
int processors_allowed();

}  // namespace annulus
