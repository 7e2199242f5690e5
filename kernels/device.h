#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/lane.h"
#include "kernels/base/shown_image.h"
#include "kernels/base/tensor.h"
#include "kernels/neighbour_fusion.h"
#include "kernels/operation.h"
#include "kernels/precision.h"
#include "kernels/update.h"

namespace annulus {

enum class Mode { training, inference };

// An operation's operands. They are bound once, before the first step, and do not change.
struct Bindings {
  std::vector<DeviceView> inputs;
  DeviceView output;
  std::vector<DeviceView> parameters;  // as declared by parameters(operation), float32
  std::vector<DeviceView> copies{};    // the same in the device's value type; empty views if that is float32
  // The rest is for Mode::training only.
  // float32; all are empty views if none is needed and OpInfo::skips_parameter_gradients.
  std::vector<DeviceView> parameter_gradients;
  std::vector<DeviceView> input_gradients;  // an empty view if the gradient is not needed
  std::vector<bool> accumulate{};           // add to the input's gradient instead of writing it; see InputUse
  DeviceView output_gradient;               // empty for the last operation
  DeviceView scratch{};                     // OpInfo::scratch_bytes, in every mode; shared with other operations

  bool accumulates(std::size_t input) const { return input < accumulate.size() && accumulate[input]; }
};

// How an operation uses an input; the memory plan follows from it. The defaults are always safe.
struct InputUse {
  bool backward_reads = true;           // backward reads the input's values
  bool output_may_overwrite = false;    // forward may write the output over the input
  bool gradient_may_overwrite = false;  // backward may write the input's gradient over the output's
  bool adds_to_gradient = false;        // backward can add to the input's gradient at the cost of writing it
  bool gradient_is_outputs = false;     // it equals the output's, and backward writes none that has the same memory
};

// A planned operation's properties, which do not change once it is bound.
struct OpInfo {
  TensorSpec output;
  std::vector<TensorSpec> parameters;
  std::vector<InputUse> inputs;            // for each input; empty: the defaults for all
  bool backward_reads_output = true;       // backward reads the output's values
  bool skips_parameter_gradients = false;  // backward does not compute them if they are not bound
  bool keeps_output_gradient = false;      // backward does not use the output's gradient as scratch
  FusedPasses fused{};                     // see NeighbourFusion
  std::size_t scratch_bytes = 0;           // scratch memory that forward and backward need while they run
  // A pass contains all-reduces: every rank must run the same operations in the same order.
  bool sums_over_ranks = false;
  // The CPU library's names for the implementations that it runs, such as jit:avx2; empty for our own kernels.
  std::vector<std::string> implementations;

  InputUse input(std::size_t number) const { return inputs.empty() ? InputUse{} : inputs[number]; }
};

// An operation planned on a device for fixed shapes: planned once, run every step. After bind(), a run allocates no
// memory, except for the vendor library's own bookkeeping.
class Op {
 public:
  virtual ~Op() = default;

  const OpInfo& info() const { return info_; }
  const TensorSpec& output() const { return info_.output; }
  const std::vector<TensorSpec>& parameters() const { return info_.parameters; }

  // Call if info().sums_over_ranks: `sum` does the passes' all-reduces from now on. Without it, the operation computes
  // as a single rank.
  virtual void sum_over_ranks(const SumOverRanks& /*sum*/) {}

  // From now on, backward() may call `final` with the number of values in a parameter's gradient that are final, and
  // with it the gradients of all parameters before it: a large gradient can then be sent before backward() ends.
  using ReportFinal = std::function<void(std::size_t parameter, std::size_t values)>;
  virtual void report_gradients(const ReportFinal& /*final*/) {}

  virtual void bind(const Bindings& bindings) = 0;
  virtual void forward() = 0;

  // Writes the parameters' and the inputs' gradients if they are bound; adds to an input's gradient only if
  // `accumulate` is bound. `sample_weight` is 1 / global batch: the loss's gradient is seeded with it, and batch
  // statistics are weighted by sample_weight x batch. May use the output's gradient as scratch.
  virtual void backward(float sample_weight) = 0;

 protected:
  OpInfo info_;
};

// Recorded work. Replaying it enqueues it on the device's lane at less cost than calling the operations again.
class Recording {
 public:
  virtual ~Recording() = default;
  // Returns this replay's marks, one for each that the recorded work set. Valid until the next call.
  virtual std::span<const Mark> replay() = 0;
};

// Dynamic loss scaling (Micikevicius et al., "Mixed precision training", ICLR 2018), for gradients in a 16-bit type
// with a small range: the loss is multiplied by a scale that keeps them within that range. (The scale is divided out
// before they are written to the arena.) If a gradient overflows, the all-reduced gradients contain an infinity or a
// NaN: then no rank updates anything in this step, and the scale is halved. After many good steps it is doubled.
class LossScaling {
 public:
  struct State {
    float scale = 65536;
    std::uint32_t good_steps = 0;  // since the scale changed
  };

  virtual ~LossScaling() = default;
  virtual void judge(DeviceView gradients) = 0;     // a step's gradients, all-reduced; before the step's first update
  virtual void agree(const SumOverRanks& sum) = 0;  // after judge(), if each rank has judged a part of the gradients
  virtual void conclude() = 0;                      // after the step's last update
  virtual State state() = 0;
  virtual void set_state(const State& state) = 0;
};

// A device's properties, which do not change.
struct DeviceInfo {
  std::string description;              // a line for the user: name, threads or memory, precision
  DataType value_type = DataType::f32;  // for activations
  bool shares_host_memory = true;       // device memory is the process's own
  bool records = false;                 // recorded work runs faster, see Device::record()
  std::size_t free_bytes = 0;           // on a GPU when it was opened, for each process that uses it
};

// An in-order lane of work on a processor: the interface between what is computed and how. On a GPU, all functions
// except download(), read(), finish() and seconds() return before the work is done.
class Device : public Lane {
 public:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}

  const DeviceInfo& info() const { return info_; }

  // Plans an operation. If `parameters` is not empty, the operation's parameters already have these layouts.
  virtual std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                   const std::vector<TensorSpec>& parameters) = 0;
  // Segments are in arena order.
  virtual std::unique_ptr<Update> plan(const UpdateRule& rule, const UpdateArenas& arenas,
                                       const std::vector<UpdateSegment>& segments) = 0;

  // Specs for a plain, row-major tensor, and for activations in the layout that the device's operations use.
  virtual TensorSpec plain(const Shape& shape, DataType type) = 0;
  virtual TensorSpec values(const Shape& shape) { return plain(shape, DataType::f32); }

  virtual Buffer allocate(std::size_t bytes) = 0;                           // zeroed, aligned for any use
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;                    // in the host's memory, for copy()
  virtual void upload(std::span<const std::byte> host, DeviceView to) = 0;  // `host` may change once it returns
  // Begins an upload() that is expected later, so that it takes less time. REQUIRES: `host` does not change before it.
  virtual void prefetch(std::span<const std::byte> /*host*/) {}
  virtual void download(DeviceView from, std::span<std::byte> host) = 0;
  // Like download(), but does not wait for the lane. REQUIRES: no pending work on the lane writes `from`.
  virtual void peek(DeviceView from, std::span<std::byte> host) { download(from, host); }

  // Copy from or to row-major host memory, converting from or to any layout and type. Padding is written as zeros.
  virtual void write(std::span<const float> host, const TensorSpec& spec, DeviceView to) = 0;
  virtual void read(const TensorSpec& spec, DeviceView from, std::span<float> host) = 0;

  // Kernels over flat arrays.
  virtual void zero(DeviceView to) = 0;
  virtual void copy(DeviceView from, DeviceView to) = 0;                      // float32, also pinned; so the next two
  virtual void scale(DeviceView from, float factor, DeviceView to) = 0;       // to = factor from
  virtual void add_scaled(DeviceView from, float factor, DeviceView to) = 0;  // to += factor from
  virtual void add(DeviceView from, DeviceView to, DataType type) = 0;
  virtual void swap(DeviceView a, DeviceView b) = 0;  // float32
  // to[index[i]] += from[i] for rows of `width` values, in ascending i. Rows with a negative index (int32) are skipped.
  // `to` is float32. `from` has the device's value type, and in fp16 the loss scale is divided out; or it is float32.
  virtual void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to) = 0;
  virtual void cast_params(DeviceView weights, DeviceView copies) = 0;  // float32 to the value type
  // Adds the hash of a float32 array that begins at a multiple of 16 bytes to an ArrayHash.
  virtual void add_hash(DeviceView from, DeviceView to) = 0;
  // Copies images of a set. `shown`: a ShownImage for each.
  virtual void show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to) = 0;

  // Null if gradients need no scale.
  virtual LossScaling* loss_scaling() { return nullptr; }

  virtual void finish() {}  // waits until all work on the lane is done

  // Records the work that work() enqueues, without doing it. Work that has never run before may not be recordable.
  // Marks that work() sets are not valid, but Recording::replay() returns valid marks. REQUIRES: info().records.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work);

  // Calls work(), which enqueues work on a lane beside this lane: it may run before the work that is on this lane now,
  // and runs after what work() joins or awaits. Later work on this lane runs after it. Within work() all calls,
  // including AllReduce's, refer to the lane beside. A device that works immediately has a single lane.
  virtual void run_beside(const std::function<void()>& work) { work(); }
  virtual void await(const Mark& /*mark*/) {}  // later work runs after this mark, on either lane

 private:
  const DeviceInfo info_;
};

// How to choose among a library's plans, on GPUs.
struct Tuning {
  std::string file{};         // with measured plans; empty: heuristics choose
  bool deterministic = true;  // chooses no plans whose results differ from run to run
  // Called now and then with a line for the user while plans are measured.
  std::function<void(const std::string& line)> report = [](const std::string&) {};
};

// The device that a rank requests, and how it computes.
struct DeviceRequest {
  std::string name = "auto";             // "cpu", "cuda", or "auto": a GPU if there is one
  int threads = 0;                       // on the CPU; 0: a thread for each processor that this process may use
  std::optional<Precision> precision{};  // bf16 on a GPU and fp32 on a CPU, if not set
  int gpu = 0;                           // the GPU's number
  int sharing = 1;                       // processes that use this GPU
  Tuning tuning{};                       // convolutions'
};

// Throws Error if there is no such device on this machine, or if it does not support the precision.
std::unique_ptr<Device> make_device(const DeviceRequest& request);
std::unique_ptr<Device> make_device(const std::string& name, int threads = 0);

// Returns the number of processors in this process's affinity mask.
int processors_allowed();

}  // namespace annulus
