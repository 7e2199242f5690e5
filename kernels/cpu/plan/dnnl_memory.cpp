#include "kernels/cpu/plan/dnnl_memory.h"

#include <fmt/ranges.h>

#include <limits>

#include "kernels/base/error.h"

namespace annulus::cpu {
namespace {

dnnl::memory::dims dims(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

dnnl::memory::data_type dnnl_type(DataType type) {
  switch (type) {
    case DataType::f32:
      return dnnl::memory::data_type::f32;
    case DataType::i32:
      return dnnl::memory::data_type::s32;
    case DataType::u8:
      return dnnl::memory::data_type::u8;
    case DataType::f16:
    case DataType::bf16:
      break;  // not used on a CPU
  }
  fail("device cpu does not support tensors of type {}", static_cast<int>(type));
}

// Row-major strides for oneDNN, in elements.
dnnl::memory::dims row_major(const Shape& shape) {
  dnnl::memory::dims strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * static_cast<dnnl_dim_t>(shape[i]);
  return strides;
}

dnnl::stream& stream() {
  static dnnl::stream the_stream(engine());
  return the_stream;
}

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine the_engine(dnnl::engine::kind::cpu, 0);
  return the_engine;
}

std::string DnnlLayout::name() const {
  const auto& blocking = desc.data.format_desc.blocking;
  const int dimensions = desc.data.ndims;
  return fmt::format("{}:{}:{}b{}i{}", static_cast<int>(desc.data.data_type),
                     fmt::join(desc.data.padded_dims, desc.data.padded_dims + dimensions, "x"),
                     fmt::join(blocking.strides, blocking.strides + dimensions, ","),
                     fmt::join(blocking.inner_blks, blocking.inner_blks + blocking.inner_nblks, ","),
                     fmt::join(blocking.inner_idxs, blocking.inner_idxs + blocking.inner_nblks, ","));
}

TensorSpec spec(const Shape& shape, const dnnl::memory::desc& desc) {
  return {shape, DataType::f32, std::make_shared<DnnlLayout>(desc)};
}

const dnnl::memory::desc& desc(const TensorSpec& spec) {
  return static_cast<const DnnlLayout&>(*spec.layout).desc;
}

bool has_layout(const TensorSpec& spec, dnnl::memory::format_tag tag) {
  return desc(spec) == dnnl::memory::desc(desc(spec).dims(), dnnl::memory::data_type::f32, tag);
}

dnnl::memory::desc any_layout(const Shape& shape) {
  return {dims(shape), dnnl::memory::data_type::f32, dnnl::memory::format_tag::any};
}

dnnl::memory::desc plain_layout(const Shape& shape, DataType type) {
  return {dims(shape), dnnl_type(type), row_major(shape)};
}

dnnl::memory::desc fixed_or_any(const std::vector<TensorSpec>& parameters, std::size_t index, const Shape& shape) {
  return parameters.empty() ? any_layout(shape) : desc(parameters[index]);
}

dnnl::primitive_attr attributes(bool relu) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (!relu) return attributes;
  // Without a slope below zero, oneDNN takes a maximum with 0, which turns NaN to 0 and hides divergence. With a slope
  // it compares and multiplies, at the same speed. The smallest normal number leaves nothing of ordinary values.
  constexpr float kSlope = std::numeric_limits<float>::min();
  dnnl::post_ops after;
  after.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, kSlope, 0.0f);
  attributes.set_post_ops(after);
  return attributes;
}

dnnl::memory memory_at(const dnnl::memory::desc& desc, DeviceView view) {
  return {desc, engine(), view.address};
}

ImageLayout image_layout(const TensorSpec& spec) {
  const auto& data = desc(spec).data;
  const auto& blocking = data.format_desc.blocking;
  const auto width_stride = static_cast<std::size_t>(blocking.strides[3]);
  const bool images = data.ndims == 4 && blocking.strides[2] == blocking.strides[3] * data.dims[3] &&
                      (blocking.inner_nblks == 0 || (blocking.inner_nblks == 1 && blocking.inner_idxs[0] == 1));
  if (!images) fail("oneDNN chose the layout {} for images, which no kernel of ours supports", spec.layout->name());
  const std::size_t pixels = spec.shape[2] * spec.shape[3];
  return {spec.layout->bytes() / sizeof(float) / pixels / width_stride, spec.shape[2], spec.shape[3], width_stride};
}

dnnl::memory::desc layout_like(const TensorSpec& images, const Shape& shape) {
  using Tag = dnnl::memory::format_tag;
  // oneDNN ignores the order in which single pixels lie; loops over image_layout() do not.
  const auto pixel_stride = [](const dnnl::memory::desc& desc) { return desc.data.format_desc.blocking.strides[3]; };
  for (const Tag tag : {Tag::nchw, Tag::nChw8c, Tag::nChw16c, Tag::nChw4c, Tag::nhwc})
    if (const dnnl::memory::desc tagged(dims(images.shape), dnnl::memory::data_type::f32, tag);
        desc(images) == tagged && pixel_stride(desc(images)) == pixel_stride(tagged))
      return {dims(shape), dnnl::memory::data_type::f32, tag};
  fail("oneDNN chose the layout {} for images, which is not one of its known formats", images.layout->name());
}

dnnl::memory Scratch::take(const dnnl::memory::desc& desc) {
  const std::size_t bytes = Scratch::bytes({desc});
  const dnnl::memory taken = memory_at(desc, rest_);
  rest_ = {rest_.address + bytes, rest_.bytes - bytes};
  return taken;
}

std::size_t Scratch::bytes(std::initializer_list<dnnl::memory::desc> descs) {
  constexpr std::size_t kAlignment = 4096;
  std::size_t sum = 0;
  for (const auto& desc : descs) sum += (desc.get_size() + kAlignment - 1) / kAlignment * kAlignment;
  return sum;
}

Primitive::Primitive(const dnnl::primitive& primitive, const Arguments& arguments) : primitive_(primitive) {
  for (const auto& [index, memory] : arguments) {
    memories_.push_back(memory);
    arguments_.push_back({index, memory.get()});
  }
}

Primitive::Primitive(const dnnl::primitive& primitive, Arguments arguments, const dnnl::memory& scratchpad) {
  arguments.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpad);
  *this = Primitive(primitive, arguments);
}

void Primitive::run() const {
  if (arguments_.empty()) return;
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream().get(), static_cast<int>(arguments_.size()), arguments_.data()),
      "a oneDNN primitive failed");
}

dnnl::memory::desc Adapted::copy(const dnnl::memory::desc& have, const dnnl::memory::desc& want) {
  return have == want ? dnnl::memory::desc() : want;
}

std::vector<std::string> Adapted::implementations(const dnnl::memory::desc& have, const dnnl::memory::desc& want) {
  if (have == want) return {};
  const auto reorder = [](const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
    return dnnl::reorder::primitive_desc(engine(), from, engine(), to).impl_info_str();
  };
  return {reorder(have, want), reorder(want, have)};
}

Adapted::Adapted(const dnnl::memory::desc& have, const dnnl::memory::desc& want, DeviceView tensor, Scratch& scratch)
    : wanted_(memory_at(have, tensor)) {
  if (have == want) return;
  const dnnl::memory original = wanted_;
  wanted_ = scratch.take(want);
  load_ = {dnnl::reorder(original, wanted_), {{DNNL_ARG_FROM, original}, {DNNL_ARG_TO, wanted_}}};
  store_ = {dnnl::reorder(wanted_, original), {{DNNL_ARG_FROM, wanted_}, {DNNL_ARG_TO, original}}};
}

}  // namespace annulus::cpu
