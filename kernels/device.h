#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/operation.h"
#include "kernels/tensor.h"

namespace annulus {

enum class Mode { training, inference };

// Where an operation finds its operands. Views are bound once, before the first step, and stay.
struct Bindings {
  std::vector<DeviceView> inputs;
  DeviceView output;
  std::vector<DeviceView> parameters;  // as declared by parameters(operation)
  // The rest is for Mode::training only.
  std::vector<DeviceView> parameter_gradients;
  std::vector<DeviceView> input_gradients;  // an empty view: nobody wants this one
  DeviceView output_gradient;               // empty for the last operation
};

// An operation planned on a device for fixed shapes: planned once, run every step. After bind(), running it
// allocates nothing but what the vendor's library keeps for its own bookkeeping.
class Op {
 public:
  virtual ~Op() = default;

  const TensorSpec& output() const { return output_; }
  const std::vector<TensorSpec>& parameters() const { return parameters_; }

  virtual void bind(const Bindings& bindings) = 0;
  virtual void forward() = 0;

  // Writes (never adds to) the gradients of the inputs that are wanted and of the parameters. `sample_weight` is
  // 1 / global batch: the loss's gradient is seeded with it, and batch statistics are weighted by it times the batch.
  virtual void backward(float sample_weight) = 0;

 protected:
  TensorSpec output_;
  std::vector<TensorSpec> parameters_;
};

// Stochastic gradient descent with momentum: g += weight_decay w;  v = momentum v + g;  w -= rate v
// (or, with Nesterov's momentum, w -= rate (g + momentum v)).
struct SgdStep {
  float rate;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
};

// One in-order lane of work on one processor. The seam between what is computed and how.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;  // one line for the user: name, threads or memory

  // Plans an operation. Where `parameters` is not empty these are the layouts that its parameters already have.
  virtual std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                   const std::vector<TensorSpec>& parameters) = 0;

  // A plain, row-major tensor.
  virtual TensorSpec plain(const Shape& shape, DataType type) = 0;

  virtual Buffer allocate(std::size_t bytes) = 0;  // zeroed, aligned for any use
  virtual void upload(std::span<const std::byte> host, DeviceView to) = 0;
  virtual void download(DeviceView from, std::span<std::byte> host) = 0;

  // A float32 tensor from or to row-major host memory, whatever its layout. Padding is written as zeros.
  virtual void write(std::span<const float> host, const TensorSpec& spec, DeviceView to) = 0;
  virtual void read(const TensorSpec& spec, DeviceView from, std::span<float> host) = 0;

  // The flat kernels over slices of the arenas (float32).
  virtual void zero(DeviceView to) = 0;
  virtual void copy(DeviceView from, DeviceView to) = 0;
  virtual void add(DeviceView from, DeviceView to) = 0;
  virtual void sgd(DeviceView weights, DeviceView gradients, DeviceView velocity, const SgdStep& step) = 0;
  virtual void average(DeviceView running, DeviceView batch,
                       float momentum) = 0;  // running += momentum (batch - running)
};

// "cpu", with as many threads as this process may use, or `threads` where that is positive.
std::unique_ptr<Device> make_device(const std::string& name, int threads = 0);

// How many processors the affinity mask gives this process.
int processors_allowed();

}  // namespace annulus
