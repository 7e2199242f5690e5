#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// The little of cuDNN's graph API that we use, with owners and exceptions: what shall be computed is a graph of
// operations, heuristics name engines that can compute it, and an engine with its settings becomes an execution plan.
// (The calls are those of cuDNN's "backend API", in cudnn_graph.h of its own.)
namespace annulus::cuda::cudnn {

// Throws Error with cuDNN's own text where a call failed.
void check(cudnnStatus_t status, std::source_location place = std::source_location::current());

struct HandleRelease {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleRelease>;

Handle make_handle();  // on the device that is current; throws Error where there is none

// How cuDNN calls the types of attributes.
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
inline constexpr auto kAttributeType<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
inline constexpr auto kAttributeType<cudnnBackendKnobType_t> = CUDNN_TYPE_KNOB_TYPE;
template <>
inline constexpr auto kAttributeType<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;

// Whatever cuDNN is told is a descriptor: made of a type, given its attributes, and finalized, after which it is fixed.
// One that is an attribute of another must outlive it.
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

  // Throws Error where cuDNN cannot do what the attributes say.
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
  // At most `most`; how many there are cuDNN says of some attributes only.
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

// What plans are made for: the handle's GPU, or one that need not be here, as cuDNN describes it in JSON.
Descriptor device_properties(cudnnHandle_t handle);
Descriptor device_properties(const std::string& json);

// Extents and strides are in cuDNN's order: batch, channels, height, width. `id` is how addresses are given later.
Descriptor tensor(std::int64_t id, cudnnDataType_t type, std::span<const std::int64_t, 4> extents,
                  std::span<const std::int64_t, 4> strides, std::size_t alignment);

// Operations, with the tensors and whatever else they are made of.
struct Graph {
  std::vector<Descriptor> parts;
  std::vector<Descriptor> operations;
  Descriptor descriptor{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};
Graph graph(std::vector<Descriptor> parts, std::vector<Descriptor> operations);

// An engine, by its number within cuDNN's version, and how it is set.
struct Choice {
  std::int64_t engine;
  std::map<int, std::int64_t> knobs;  // by cudnnBackendKnobType_t

  bool operator==(const Choice&) const = default;
};
std::string to_string(const Choice& choice);

// A choice with what cuDNN says about it.
struct EngineConfiguration {
  Descriptor engine, descriptor;
  Choice choice;
  std::vector<cudnnBackendNumericalNote_t> notes;

  bool has(cudnnBackendNumericalNote_t note) const;
};

// Those that cuDNN thinks can compute the graph, likely the fastest first; none where the mode knows none.
std::vector<EngineConfiguration> configurations(const Graph& graph, const Descriptor& device,
                                                cudnnBackendHeurMode_t mode);
EngineConfiguration configuration(const Graph& graph, const Descriptor& device, const Choice& choice);

// Throws Error where the engine turns out not to support it. May compile, which takes seconds.
// `handle`: that it will run with; null where it will not.
Descriptor execution_plan(const EngineConfiguration& configuration, const Descriptor& device, cudnnHandle_t handle);
std::size_t workspace_bytes(const Descriptor& execution_plan);

// The addresses of a graph's tensors, in the order of their ids.
Descriptor variant_pack(std::span<const std::int64_t> ids, std::span<void* const> addresses, void* workspace);

}  // namespace annulus::cuda::cudnn
