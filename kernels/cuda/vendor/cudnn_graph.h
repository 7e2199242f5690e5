#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/precision.h"

// Wraps the part of cuDNN's graph API that we use, with RAII and exceptions. A computation is a graph of operations;
// heuristics propose engines that can compute the graph; an engine with settings becomes an execution plan. (cuDNN
// calls these functions "backend API", in cuDNN's cudnn_graph.h.)
namespace annulus::cuda::cudnn {

// Throws Error with cuDNN's own text if a call failed.
void check(cudnnStatus_t status, std::source_location place = std::source_location::current());

struct HandleRelease {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleRelease>;

Handle make_handle();  // on the current device; throws Error if there is none

// Gives cuDNN's enumerator for an attribute type.
template <class T>
inline constexpr cudnnBackendAttributeType_t kAttributeType = T::no_such_attribute;
template <>
inline constexpr auto kAttributeType<bool> = CUDNN_TYPE_BOOLEAN;
template <>
inline constexpr auto kAttributeType<char> = CUDNN_TYPE_CHAR;
template <>
inline constexpr auto kAttributeType<float> = CUDNN_TYPE_FLOAT;
template <>
inline constexpr auto kAttributeType<std::int64_t> = CUDNN_TYPE_INT64;
template <>
inline constexpr auto kAttributeType<void*> = CUDNN_TYPE_VOID_PTR;
template <>
inline constexpr auto kAttributeType<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
inline constexpr auto kAttributeType<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
inline constexpr auto kAttributeType<cudnnConvolutionMode_t> = CUDNN_TYPE_CONVOLUTION_MODE;
template <>
inline constexpr auto kAttributeType<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
inline constexpr auto kAttributeType<cudnnNanPropagation_t> = CUDNN_TYPE_NAN_PROPOGATION;
template <>
inline constexpr auto kAttributeType<cudnnGenStatsMode_t> = CUDNN_TYPE_GENSTATS_MODE;
template <>
inline constexpr auto kAttributeType<cudnnReduceTensorOp_t> = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
inline constexpr auto kAttributeType<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
inline constexpr auto kAttributeType<cudnnBackendKnobType_t> = CUDNN_TYPE_KNOB_TYPE;
template <>
inline constexpr auto kAttributeType<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;

// Wraps a cuDNN descriptor; all inputs to cuDNN are descriptors. Create a descriptor with a type, set attributes, and
// finalize it; then it cannot be changed. A descriptor used as an attribute must outlive the descriptor that uses it.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set(name, kAttributeType<T>, 1, &value);
  }
  template <class T>
  Descriptor& set_all(cudnnBackendAttributeName_t name, std::span<const T> values) {
    return set(name, kAttributeType<T>, values.size(), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& part);
  Descriptor& set_parts(cudnnBackendAttributeName_t name, std::span<const Descriptor> parts);

  // Throws Error if cuDNN does not support the attributes.
  void finalize(std::source_location place = std::source_location::current());

  template <class T>
  std::vector<T> get_all(cudnnBackendAttributeName_t name) const {
    std::vector<T> values(count(name, kAttributeType<T>));
    values.resize(get(name, kAttributeType<T>, values.size(), values.data()));
    return values;
  }
  template <class T>
  T get(cudnnBackendAttributeName_t name) const {
    T value{};
    get(name, kAttributeType<T>, 1, &value);
    return value;
  }
  // Returns at most `most` parts; cuDNN reports the number of parts only for some attributes.
  std::vector<Descriptor> get_parts(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                    std::size_t most) const;
  std::size_t count_parts(cudnnBackendAttributeName_t name) const;

  cudnnBackendDescriptor_t handle() const { return descriptor_.get(); }

 private:
  struct Release {
    void operator()(cudnnBackendDescriptor_t descriptor) const { cudnnBackendDestroyDescriptor(descriptor); }
  };

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                  const void* values);
  std::size_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;
  std::size_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                  void* values) const;

  std::unique_ptr<void, Release> descriptor_;
};

// Describe the GPU that plans are made for: the handle's, or a GPU that this machine need not have, from cuDNN's JSON.
Descriptor device_properties(cudnnHandle_t handle);
Descriptor device_properties(const std::string& json);

cudnnDataType_t data_type(Precision precision);  // the precision's value type

// Says where a tensor's values are: in device memory; only within the graph's kernels and workspace ("virtual"); or in
// host memory, passed to the kernels as arguments.
enum class Place { device, intermediate, argument };

// Extents and strides are in cuDNN's order: batch, channels, height, width. variant_pack() refers to the tensor by
// `id`.
Descriptor tensor(std::int64_t id, cudnnDataType_t type, std::span<const std::int64_t, 4> extents,
                  std::span<const std::int64_t, 4> strides, std::size_t alignment, Place place = Place::device);

// Returns the operation to = function(from...), for a pointwise descriptor.
Descriptor pointwise_operation(const Descriptor& function, std::initializer_list<const Descriptor*> from,
                               const Descriptor& to);

// Operations, with their tensors and other parts.
struct Graph {
  std::deque<Descriptor> parts;
  std::vector<Descriptor> operations;
  Descriptor descriptor{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};
Graph graph(std::deque<Descriptor> parts, std::vector<Descriptor> operations);

// Names an engine, by the number in this cuDNN version, and settings.
struct Choice {
  std::int64_t engine;
  std::map<int, std::int64_t> knobs;  // by cudnnBackendKnobType_t

  bool operator==(const Choice&) const = default;
};
std::string to_string(const Choice& choice);

// Holds a choice with cuDNN's descriptors and notes.
struct EngineConfiguration {
  Descriptor engine, descriptor;
  Choice choice;
  std::vector<cudnnBackendNumericalNote_t> notes;

  bool has(cudnnBackendNumericalNote_t note) const;
};

// Returns why an engine must not be used; empty if allowed. If not `deterministic`, sums may differ from run to run.
std::string objection(const EngineConfiguration& configuration, Precision precision, bool deterministic = true);

// Returns the configurations that cuDNN proposes for the graph, probably the fastest first; none if the mode finds
// none.
std::vector<EngineConfiguration> configurations(const Graph& graph, const Descriptor& device,
                                                cudnnBackendHeurMode_t mode);
EngineConfiguration configuration(const Graph& graph, const Descriptor& device, const Choice& choice);

// Throws Error if the engine turns out not to support the graph. May compile, which takes seconds. `handle`: runs the
// plan later; null if the plan will not run.
Descriptor execution_plan(const EngineConfiguration& configuration, const Descriptor& device, cudnnHandle_t handle);
std::size_t workspace_bytes(const Descriptor& execution_plan);

// Binds `addresses` to a graph's tensors, in the order of `ids`.
Descriptor variant_pack(std::span<const std::int64_t> ids, std::span<void* const> addresses, void* workspace);

}  // namespace annulus::cuda::cudnn
