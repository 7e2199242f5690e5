#pragma once

#include <initializer_list>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/host_memory.h"
#include "kernels/device.h"

// What the CPU's operations share in using oneDNN.
namespace annulus::cpu {

const dnnl::engine& engine();

class DnnlLayout : public Layout {
 public:
  explicit DnnlLayout(const dnnl::memory::desc& description) : desc(description) {}
  std::size_t bytes() const override { return desc.get_size(); }
  std::string name() const override;

  const dnnl::memory::desc desc;
};

TensorSpec spec(const Shape& shape, const dnnl::memory::desc& desc);
const dnnl::memory::desc& desc(const TensorSpec& spec);
bool has_layout(const TensorSpec& spec, dnnl::memory::format_tag tag);  // float32, in just this one

dnnl::memory::desc any_layout(const Shape& shape);  // float32; oneDNN chooses
dnnl::memory::desc plain_layout(const Shape& shape, DataType type = DataType::f32);

// The layout that `parameters[index]` already has, or any where there are none yet.
dnnl::memory::desc fixed_or_any(const std::vector<TensorSpec>& parameters, std::size_t index, const Shape& shape);

// Attributes of a primitive that uses an operation's scratch, and that ends in a ReLU or in nothing.
dnnl::primitive_attr attributes(bool relu = false);

dnnl::memory memory_at(const dnnl::memory::desc& desc, DeviceView view);

// Images are an array of {outer, height, width, inner} in every layout that oneDNN chooses for them: inner is the
// channel block of a blocked layout, all channels of a channels-last one, 1 of a plain one.
struct ImageLayout {
  std::size_t outer, height, width, inner;
};
ImageLayout image_layout(const TensorSpec& spec);

// Of images of another shape, the kind of layout that these have.
dnnl::memory::desc layout_like(const TensorSpec& images, const Shape& shape);

// Hands out an operation's scratch (Op::scratch_bytes) piece by piece.
class Scratch {
 public:
  explicit Scratch(DeviceView memory) : rest_(memory) {}
  dnnl::memory take(const dnnl::memory::desc& desc);

  // What these take together.
  static std::size_t bytes(std::initializer_list<dnnl::memory::desc> descs);

 private:
  DeviceView rest_;
};

// A primitive with its arguments, ready to run: argument lists are built once and not at every step.
class Primitive {
 public:
  using Arguments = std::vector<std::pair<int, dnnl::memory>>;

  Primitive() = default;
  Primitive(const dnnl::primitive& primitive, const Arguments& arguments);
  // With what its description calls its scratchpad.
  Primitive(const dnnl::primitive& primitive, Arguments arguments, const dnnl::memory& scratchpad);
  void run() const;

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // kept alive for arguments_
  std::vector<dnnl_exec_arg_t> arguments_;
};

// A tensor in the layout that a primitive wants it in: the tensor itself where it has this layout already, else a
// copy in the scratch, to be loaded from the tensor before the primitive runs, or stored to it afterwards.
class Adapted {
 public:
  Adapted() = default;
  Adapted(const dnnl::memory::desc& have, const dnnl::memory::desc& want, DeviceView tensor, Scratch& scratch);

  // The copy's; of no size where there is none.
  static dnnl::memory::desc copy(const dnnl::memory::desc& have, const dnnl::memory::desc& want);

  // oneDNN's names of the reorders that load and that store the copy, in this order; none if the layouts agree.
  static std::vector<std::string> implementations(const dnnl::memory::desc& have, const dnnl::memory::desc& want);

  const dnnl::memory& wanted() const { return wanted_; }
  void load() const { load_.run(); }
  void store() const { store_.run(); }

 private:
  dnnl::memory wanted_;
  Primitive load_, store_;  // empty, and nothing to do, where the layouts agree
};

}  // namespace annulus::cpu
