#include "kernels/cuda/vendor/cudnn_graph.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace annulus::cuda::cudnn {
namespace {

static_assert(CUDNN_VERSION >= 90800, "plans are made for device properties, which came with cuDNN 9.8");

std::string last_error() {
  std::array<char, 512> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  std::string line = text.data();
  std::ranges::replace(line, '\n', ' ');
  return line;
}

Choice choice_of(const Descriptor& configuration, const Descriptor& engine) {
  Choice choice{engine.get<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), {}};
  for (const Descriptor& knob : configuration.get_parts(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                        CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS))
    choice.knobs[knob.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)] =
        knob.get<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  return choice;
}

}  // namespace

void check(cudnnStatus_t status, std::source_location place) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string reason = last_error();
  fail("cuDNN failed in {} ({}:{}): {}{}{}", place.function_name(), place.file_name(), place.line(),
       cudnnGetErrorString(status), reason.empty() ? "" : ": ", reason);
}

Handle make_handle() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle));
  return Handle(handle);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  check(cudnnBackendCreateDescriptor(type, &descriptor));
  descriptor_.reset(descriptor);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                            const void* values) {
  check(cudnnBackendSetAttribute(handle(), name, type, static_cast<std::int64_t>(count), values));
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& part) {
  const cudnnBackendDescriptor_t handle = part.handle();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
}

Descriptor& Descriptor::set_parts(cudnnBackendAttributeName_t name, std::span<const Descriptor> parts) {
  std::vector<cudnnBackendDescriptor_t> handles;
  std::ranges::transform(parts, std::back_inserter(handles), &Descriptor::handle);
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, handles.size(), handles.data());
}

void Descriptor::finalize(std::source_location place) {
  check(cudnnBackendFinalize(handle()), place);
}

std::size_t Descriptor::count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
  return get(name, type, 0, nullptr);
}

std::size_t Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                            void* values) const {
  std::int64_t there = 0;
  check(cudnnBackendGetAttribute(handle(), name, type, static_cast<std::int64_t>(count), &there, values));
  return static_cast<std::size_t>(there);
}

std::vector<Descriptor> Descriptor::get_parts(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                              std::size_t most) const {
  std::vector<Descriptor> parts;  // created here, filled by cuDNN
  for (std::size_t i = 0; i < most; ++i) parts.emplace_back(type);
  std::vector<cudnnBackendDescriptor_t> handles;
  std::ranges::transform(parts, std::back_inserter(handles), &Descriptor::handle);
  const std::size_t filled = most == 0 ? 0 : get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, handles.data());
  while (parts.size() > filled) parts.pop_back();
  return parts;
}

std::size_t Descriptor::count_parts(cudnnBackendAttributeName_t name) const {
  return count(name, CUDNN_TYPE_BACKEND_DESCRIPTOR);
}

Descriptor device_properties(cudnnHandle_t handle) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_HANDLE, handle).finalize();
  return properties;
}

Descriptor device_properties(const std::string& json) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set_all<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json).finalize();
  return properties;
}

cudnnDataType_t data_type(Precision precision) {
  switch (value_type(precision)) {
    case DataType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::f16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

Descriptor tensor(std::int64_t id, cudnnDataType_t type, std::span<const std::int64_t, 4> extents,
                  std::span<const std::int64_t, 4> strides, std::size_t alignment, Place place) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, extents)
      .set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, static_cast<std::int64_t>(alignment))
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, place == Place::intermediate)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, place == Place::argument)
      .finalize();
  return tensor;
}

Descriptor pointwise_operation(const Descriptor& function, std::initializer_list<const Descriptor*> from,
                               const Descriptor& to) {
  constexpr std::array kFrom{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                             CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
  auto name = kFrom.begin();
  for (const Descriptor* operand : from) operation.set(*name++, *operand);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to).finalize();
  return operation;
}

Graph graph(std::deque<Descriptor> parts, std::vector<Descriptor> operations) {
  Graph graph{std::move(parts), std::move(operations)};
  graph.descriptor.set_parts(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph.operations).finalize();
  return graph;
}

std::string to_string(const Choice& choice) {
  std::vector<std::string> knobs;
  for (const auto& [knob, value] : choice.knobs) knobs.push_back(fmt::format("{}={}", knob, value));
  return fmt::format("engine {} with knobs {}", choice.engine, fmt::join(knobs, " "));
}

bool EngineConfiguration::has(cudnnBackendNumericalNote_t note) const {
  return std::ranges::find(notes, note) != notes.end();
}

std::string objection(const EngineConfiguration& configuration, Precision precision, bool deterministic) {
  if (deterministic && configuration.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
    return "its sums differ from run to run";
  if (configuration.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return "its sums are not in float32";
  if (configuration.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) return "it rounds its inputs";
  if (precision == Precision::fp32 && configuration.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
    return "it multiplies on tensor cores";
  return {};
}

std::vector<EngineConfiguration> configurations(const Graph& graph, const Descriptor& device,
                                                cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, mode)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device)
      .finalize();

  std::vector<EngineConfiguration> all;
  for (Descriptor& found : heuristics.get_parts(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                heuristics.count_parts(CUDNN_ATTR_ENGINEHEUR_RESULTS))) {
    Descriptor engine =
        std::move(found.get_parts(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1).at(0));
    Choice choice = choice_of(found, engine);
    auto notes = engine.get_all<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
    all.push_back({std::move(engine), std::move(found), std::move(choice), std::move(notes)});
  }
  return all;
}

EngineConfiguration configuration(const Graph& graph, const Descriptor& device, const Choice& choice) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.descriptor)
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice.engine)
      .set(CUDNN_ATTR_ENGINE_DEVICEPROP, device)
      .finalize();

  std::vector<Descriptor> knobs;
  for (const auto& [type, value] : choice.knobs) {
    Descriptor& knob = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type))
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value)
        .finalize();
  }
  Descriptor configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!knobs.empty()) configuration.set_parts(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knobs);
  configuration.finalize();

  auto notes = engine.get_all<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
  return {std::move(engine), std::move(configuration), choice, std::move(notes)};
}

Descriptor execution_plan(const EngineConfiguration& configuration, const Descriptor& device, cudnnHandle_t handle) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration.descriptor)
      .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  // Deprecated in favour of device properties, but it is not documented that a plan can run without a handle.
  if (handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
  plan.finalize();
  return plan;
}

std::size_t workspace_bytes(const Descriptor& execution_plan) {
  return static_cast<std::size_t>(execution_plan.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
}

Descriptor variant_pack(std::span<const std::int64_t> ids, std::span<void* const> addresses, void* workspace) {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
      .set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
      .finalize();
  return pack;
}

}  // namespace annulus::cuda::cudnn
