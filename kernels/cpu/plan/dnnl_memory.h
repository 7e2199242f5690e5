#pragma once

#include <initializer_list>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/host_memory.h"
#include "kernels/device.h"

// Shared helpers for CPU operations that use oneDNN.
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
bool has_layout(const TensorSpec& spec, dnnl::memory::format_tag tag);  // whether it is float32 in this layout

dnnl::memory::desc any_layout(const Shape& shape);  // float32; oneDNN chooses
dnnl::memory::desc plain_layout(const Shape& shape, DataType type = DataType::f32);

// Returns the layout that `parameters[index]` already has, or any_layout() if `parameters` is empty.
dnnl::memory::desc fixed_or_any(const std::vector<TensorSpec>& parameters, std::size_t index, const Shape& shape);

// Returns attributes for a primitive that uses an operation's scratch, and optionally ends with a ReLU, which passes
// NaN.
dnnl::primitive_attr attributes(bool relu = false);

dnnl::memory memory_at(const dnnl::memory::desc& desc, DeviceView view);

// Images are an array of {outer, height, width, inner} in every layout that oneDNN chooses for them: inner is the
// channel block in a blocked layout, all channels in a channels-last layout, 1 in a plain layout.
struct ImageLayout {
  std::size_t outer, height, width, inner;
};
ImageLayout image_layout(const TensorSpec& spec);

// Returns the same kind of layout for images with another shape.
dnnl::memory::desc layout_like(const TensorSpec& images, const Shape& shape);

// Hands out an operation's scratch (Op::scratch_bytes) piece by piece.
class Scratch {
 public:
  explicit Scratch(DeviceView memory) : rest_(memory) {}
  dnnl::memory take(const dnnl::memory::desc& desc);

  // Returns the pieces' total size.
  static std::size_t bytes(std::initializer_list<dnnl::memory::desc> descs);

 private:
  DeviceView rest_;
};

// A primitive with arguments, ready to run: argument lists are built once instead of at every step.
class Primitive {
 public:
  using Arguments = std::vector<std::pair<int, dnnl::memory>>;

  Primitive() = default;
  Primitive(const dnnl::primitive& primitive, const Arguments& arguments);
  // Adds the scratchpad that the primitive's description requires.
  Primitive(const dnnl::primitive& primitive, Arguments arguments, const dnnl::memory& scratchpad);
  void run() const;

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // kept alive for arguments_
  std::vector<dnnl_exec_arg_t> arguments_;
};

// A tensor in the layout that a primitive needs: the tensor itself if it already has this layout, else a copy in the
// scratch, which is loaded from the tensor before the primitive runs, or stored to it afterwards.
class Adapted {
 public:
  Adapted() = default;
  Adapted(const dnnl::memory::desc& have, const dnnl::memory::desc& want, DeviceView tensor, Scratch& scratch);

  // Describes the copy; has size 0 if there is no copy.
  static dnnl::memory::desc copy(const dnnl::memory::desc& have, const dnnl::memory::desc& want);

  // Returns oneDNN's names for the reorders that load and that store the copy, in this order; none if the layouts
  // agree.
  static std::vector<std::string> implementations(const dnnl::memory::desc& have, const dnnl::memory::desc& want);

  const dnnl::memory& wanted() const { return wanted_; }
  void load() const { load_.run(); }
  void store() const { store_.run(); }

 private:
  dnnl::memory wanted_;
  Primitive load_, store_;  // empty, and do nothing, if the layouts agree
};

}  // namespace annulus::cpu
