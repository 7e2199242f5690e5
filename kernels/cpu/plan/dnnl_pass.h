#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/plan/dnnl_memory.h"

namespace annulus::cpu {

// Returns true for the names of oneDNN's reference implementations. They compute a single value at a time and can take
// hundreds of times as long as others.
bool is_reference(std::string_view implementation);

// Plans a primitive. The descriptions differ in their layouts, best first: returns the plan for the first description
// that oneDNN has more than a reference implementation for; if there is none, for the first that it supports. Backward
// passes need forward's plan as a hint. Throws dnnl::error if oneDNN supports none.
//
//   const auto planned = plan_primitive<Forward>({as_it_lies, reordered}, attributes());
template <class Kind, class... Hint>
typename Kind::primitive_desc plan_primitive(const std::vector<typename Kind::desc>& descriptions,
                                             const dnnl::primitive_attr& attributes, const Hint&... hint) {
  typename Kind::primitive_desc reference;
  for (const auto& description : descriptions) {
    const typename Kind::primitive_desc planned(description, attributes, engine(), hint..., /*allow_empty=*/true);
    if (!planned) continue;
    if (!is_reference(planned.impl_info_str())) return planned;
    if (!reference) reference = planned;
  }
  if (!reference) throw dnnl::error(dnnl_unimplemented, "it has no implementation for these layouts");
  return reference;
}

// A pass of an operation (forward, or the gradient of an input or parameters), computed by a oneDNN primitive. Tensors
// in another layout than the primitive's are reordered through the operation's scratch at every run.
class DnnlPass {
 public:
  struct Tensor {
    int argument;               // DNNL_ARG_SRC, ...
    dnnl::memory::desc layout;  // the tensor's layout in memory; empty: the operation has no such tensor
    bool written = false;       // by the primitive, else read
  };

  DnnlPass() = default;  // runs nothing
  DnnlPass(const dnnl::primitive_desc& planned, std::vector<Tensor> tensors);

  std::size_t scratch_bytes() const;

  // Returns oneDNN's names for what it runs: the primitive, and the reorders if there are any.
  std::vector<std::string> implementations() const;

  // `views`: the tensors, in the constructor's order without empty ones. A pass that is never bound runs nothing.
  void bind(const std::vector<DeviceView>& views, DeviceView scratch);
  void run() const;

 private:
  dnnl::memory::desc wanted(const Tensor& tensor) const;

  dnnl::primitive_desc planned_;
  std::vector<Tensor> tensors_;
  std::vector<Adapted> read_, written_;
  Primitive primitive_;
};

// Returns an operation's input or its gradient, its output or its gradient, and its parameters or their gradients.
std::vector<DeviceView> operands(DeviceView input, DeviceView output, const std::vector<DeviceView>& parameters);

// For an operation's passes, which use its scratch in turn: the scratch size, and all implementations.
std::size_t most_scratch(std::initializer_list<const DnnlPass*> passes);
std::vector<std::string> implementations_of(std::initializer_list<const DnnlPass*> passes);

}  // namespace annulus::cpu
