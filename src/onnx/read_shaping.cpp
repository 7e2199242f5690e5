#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "src/onnx/batch_constants.h"
#include "src/onnx/fold.h"
#include "src/onnx/language_model.h"
#include "src/onnx/masks.h"
#include "src/onnx/reader.h"

// Operators that move elements without computing.
namespace annulus {
namespace {

std::ptrdiff_t at(std::size_t index) {
  return static_cast<std::ptrdiff_t>(index);
}

void read_same(NodeReader& n) {
  n.set(n.item(0));
}

void read_cast(NodeReader& n) {
  using Type = onnx::TensorProto;
  const std::int64_t to = n.attributes.whole("to", Type::FLOAT);
  if (n.as<Tokens>(0) != nullptr && (to == Type::INT64 || to == Type::INT32)) return n.set(n.item(0));
  const bool real = to == Type::FLOAT || to == Type::DOUBLE || to == Type::FLOAT16 || to == Type::BFLOAT16;
  if (real || n.as<RandomMask>(0) != nullptr || (n.is_layer(0) && is_truth(n.builder(), n.value(0))))
    return n.set(n.item(0));
  if (to != Type::BOOL) fail("the conversion of images' values to whole numbers is not supported");
  const Value zero = constant(n, real_numbers({}, {0}));
  n.set(n.linear(n.combine(Arithmetic::Operator::equal, n.value(0), zero), -1, 1));
}

// A layer's output has type float32.
void read_cast_like(NodeReader& n) {
  const Host host = n.constant(0);
  if (host == nullptr) return n.set(n.item(0));
  const auto reals = [](const HostTensor& from) {
    HostTensor to = real_numbers(from.shape, {});
    for (std::size_t i = 0; i < from.size(); ++i) to.reals.push_back(from.at(i));
    return to;
  };
  n.set(std::make_shared<const HostTensor>(for_batches(reals(*host), reals(for_other_batch(*host)))));
}

void read_shape(NodeReader& n) {
  const Shape shape = n.input_shape(0);
  const auto rank = static_cast<std::int64_t>(shape.size());
  const auto bound = [&](const char* name, std::int64_t missing) {
    const std::int64_t value = n.attributes.whole(name, missing);
    return std::clamp<std::int64_t>(value < 0 ? value + rank : value, 0, rank);
  };
  const std::int64_t start = bound("start", 0), end = std::max(start, bound("end", rank));
  const auto extents = [&](const Shape& of) {
    const std::vector<std::int64_t> all(of.begin() + start, of.begin() + end);
    return whole_numbers({all.size()}, all);
  };
  n.set(std::make_shared<const HostTensor>(for_batches(extents(shape), extents(n.other_input_shape(0)))));
}

void read_size(NodeReader& n) {
  const auto count = [](const Shape& shape) { return whole_numbers({}, {static_cast<std::int64_t>(elements(shape))}); };
  n.set(std::make_shared<const HostTensor>(for_batches(count(n.input_shape(0)), count(n.other_input_shape(0)))));
}

void read_reshape(NodeReader& n) {
  const Shape to = reshaped(n.input_shape(0), n.wholes(1), n.attributes.whole("allowzero", 0) != 0);
  if (to == n.input_shape(0)) return n.set(n.item(0));
  n.set(n.reshape(n.value(0), to));
}

void read_flatten(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  const std::int64_t axis = n.attributes.whole("axis", 1);
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (axis < -rank || axis > rank) fail("it has no dimension {}", axis);
  const std::size_t rows = elements(Shape(shape.begin(), shape.begin() + (axis < 0 ? axis + rank : axis)));
  n.set(n.reshape(x, {rows, elements(shape) / rows}));
}

void read_squeeze(NodeReader& n) {
  const Value x = n.value(0);
  const auto wanted = n.wholes_or(1, "axes");
  auto axes = squeezed_axes(n.shape(x), wanted);
  const auto place = n.builder().batch(x);
  if (wanted.empty() && place) std::erase(axes, place->axis);
  n.set(n.squeeze(x, axes));
}

void read_unsqueeze(NodeReader& n) {
  const Value x = n.value(0);
  const auto axes = n.wholes_or(1, "axes");
  const Shape shape = n.shape(x), to = unsqueezed(shape, axes);
  std::vector<std::size_t> added;
  for (const std::int64_t axis : axes) added.push_back(checked_axis(axis, to.size()));
  std::optional<std::size_t> batch_axis;
  if (const auto place = n.builder().batch(x)) {
    batch_axis = place->axis;
    std::ranges::sort(added);
    for (const std::size_t axis : added)
      if (axis <= *batch_axis) ++*batch_axis;
  }
  n.set(n.reshape(x, to, batch_axis));
}

void read_transpose(NodeReader& n) {
  const Shape shape = n.input_shape(0);
  std::vector<std::size_t> order;
  for (const std::int64_t axis : n.attributes.wholes("perm")) order.push_back(checked_axis(axis, shape.size()));
  if (order.empty()) {
    order.resize(shape.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
  }
  if (std::ranges::is_sorted(order)) return n.set(n.item(0));
  if (const auto* stored = n.as<FileTensor>(0); stored != nullptr && shape.size() == 2)
    return n.set(FileTensor{stored->tensor, !stored->transposed});
  n.set(n.transpose(n.value(0), order));
}

// Concatenates values; values that do not depend on the batch are repeated for every image.
Value concat(NodeReader& n, std::vector<Value> values, std::size_t axis) {
  std::optional<BatchPlace> place;
  std::size_t extent = 0;
  for (const Value value : values) {
    place = n.builder().batch(value);
    if (!place) continue;
    extent = n.shape(value)[place->axis];
    break;
  }
  for (Value& value : values) {
    if (!place) break;
    if (place->axis == axis) fail("it mixes the images of a batch");
    const auto own = n.builder().batch(value);
    if (own && own != place) fail("it mixes the images of a batch");
    if (own) continue;
    if (place->axis >= n.shape(value).size()) fail("its inputs do not fit each other");
    value = n.for_images(value, place->axis, *place, extent);
    if (n.builder().batch(value)) continue;
    Shape shape = n.shape(value);
    shape[place->axis] = extent;
    value = n.expand_to_batch(value, shape, *place);
  }
  return values.size() == 1 ? values[0] : n.add(Concat{axis}, values);
}

void read_concat(NodeReader& n) {
  std::vector<Value> values{n.value(0)};
  for (std::size_t i = 1; i < n.inputs(); ++i) values.push_back(n.value(i));
  const std::size_t axis = checked_axis(n.attributes.whole("axis", 0), n.shape(values[0]).size());
  n.set(concat(n, values, axis));
}

void read_slice(NodeReader& n) {
  Value x = n.value(0);
  const auto starts = n.wholes_or(1, "starts"), ends = n.wholes_or(2, "ends"), axes = n.wholes_or(3, "axes");
  const auto steps = n.has(4) ? n.wholes(4) : std::vector<std::int64_t>(starts.size(), 1);
  if (ends.size() != starts.size() || steps.size() != starts.size() || (!axes.empty() && axes.size() != starts.size()))
    fail("its starts, ends, axes and steps do not fit each other");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Shape shape = n.shape(x);
    const std::size_t axis = checked_axis(axes.empty() ? static_cast<std::int64_t>(i) : axes[i], shape.size());
    const Stride stride = stride_of(starts[i], ends[i], steps[i], shape[axis]);
    if (const auto place = n.builder().batch(x); !place || place->axis != axis)
      for (const std::size_t input : {1, 2})
        if (n.has(input)) n.expect_same_for_batches(input);
    x = stride.step == 1 ? n.slice(x, axis, static_cast<std::size_t>(stride.begin), stride.count)
                         : n.gather(x, axis, stride.indices());
  }
  n.set(x);
}

// Returns the elements at constant places in a dimension, which becomes the places' dimensions.
Value gather_at(NodeReader& n, Value x, std::size_t axis, const HostTensor& places, const Shape& places_shape) {
  if (places.real()) fail("its indices must be whole numbers");
  Shape shape = n.shape(x);
  std::vector<std::size_t> indices;
  for (const std::int64_t place : places.wholes) indices.push_back(checked_axis(place, shape[axis]));
  x = n.gather(x, axis, indices);
  if (places_shape.empty()) return n.squeeze(x, {axis});
  shape.erase(shape.begin() + at(axis));
  shape.insert(shape.begin() + at(axis), places_shape.begin(), places_shape.end());
  std::optional<std::size_t> batch_axis;
  if (const auto place = n.builder().batch(x))
    batch_axis = place->axis < axis ? place->axis : place->axis + places_shape.size() - 1;
  return n.reshape(x, shape, batch_axis);
}

void read_gather(NodeReader& n) {
  expect_plain_gradient(n);
  if (n.as<Tokens>(1) != nullptr) return n.set(token_embedding(n));
  const Value x = n.value(0);
  const std::size_t axis = checked_axis(n.attributes.whole("axis", 0), n.shape(x).size());
  const HostTensor& indices = n.expect_constant(1);
  const auto place = n.builder().batch(x);
  const auto one = place ? std::nullopt : n.for_each_sample(indices);
  if (one) {  // table rows for every sample
    const Value rows = gather_at(n, x, axis, one->values, one->values.shape);
    return n.set(n.repeat_for_images(rows, axis + one->axis, one->images_first));
  }
  if (!place || place->axis != axis) n.expect_same_for_batches(1);
  n.set(gather_at(n, x, axis, indices, indices.shape));
}

// Places in the first dimensions, which are joined.
void read_gather_nd(NodeReader& n) {
  Value x = n.value(0);
  const HostTensor& indices = n.expect_constant(1);
  n.expect_same_for_batches(1);
  if (n.attributes.whole("batch_dims", 0) != 0) fail("batch_dims are not supported: use Gather");
  if (indices.real() || indices.shape.empty()) fail("its indices do not fit");
  const std::size_t depth = indices.shape.back();
  const Shape shape = n.shape(x);
  if (depth == 0 || depth > shape.size()) fail("its indices do not fit {}", n.text(x));
  const auto place = n.builder().batch(x);
  if (place && place->axis < depth) fail("it mixes the images of a batch (dimension {})", place->axis);
  HostTensor joined = whole_numbers(Shape(indices.shape.begin(), indices.shape.end() - 1), {});
  for (std::size_t i = 0; i < elements(joined.shape); ++i) {
    std::size_t index = 0;
    for (std::size_t d = 0; d < depth; ++d)
      index = index * shape[d] + checked_axis(indices.wholes[i * depth + d], shape[d]);
    joined.wholes.push_back(static_cast<std::int64_t>(index));
  }
  Shape to(shape.begin() + at(depth), shape.end());
  to.insert(to.begin(), elements(Shape(shape.begin(), shape.begin() + at(depth))));
  x = n.reshape(x, to, place ? std::optional(place->axis + 1 - depth) : std::nullopt);
  n.set(gather_at(n, x, 0, joined, joined.shape));
}

// Replaces elements that are not images by constants.
void read_scatter_nd(NodeReader& n) {
  const Value x = n.value(0);
  const HostTensor &indices = n.expect_constant(1), &updates = n.expect_constant(2);
  if (n.builder().batch(x)) fail("the replacement of images' values is not supported: use Concat");
  const Shape shape = n.shape(x);
  if (elements(shape) > kMostConstantElements) fail("its input of {} has too many elements", to_string(shape));
  const HostTensor ones = real_numbers(shape, std::vector<double>(elements(shape), 1));
  const HostTensor zeros = real_numbers(shape, std::vector<double>(elements(shape), 0));
  const HostTensor none = real_numbers(updates.shape, std::vector<double>(updates.size(), 0));
  const auto scattered = [&](const HostTensor& over, const HostTensor& values) {
    return n.value(
        Item(std::make_shared<const HostTensor>(*evaluate("ScatterND", n.attributes, {&over, &indices, &values}))));
  };
  const Value kept = n.combine(Arithmetic::Operator::product, x, scattered(ones, none));
  const bool cleared = std::ranges::all_of(updates.reals, [](double value) { return value == 0; });
  n.set(cleared ? kept : n.combine(Arithmetic::Operator::sum, kept, scattered(zeros, updates)));
}

std::vector<Value> parts(NodeReader& n, Value x, std::size_t axis, const std::vector<std::size_t>& sizes) {
  std::vector<Value> all;
  std::size_t begin = 0;
  for (const std::size_t size : sizes) {
    all.push_back(n.slice(x, axis, begin, size));
    begin += size;
  }
  return all;
}

void read_split(NodeReader& n) {
  const Value x = n.value(0);
  const std::size_t axis = checked_axis(n.attributes.whole("axis", 0), n.shape(x).size());
  const auto sizes = split_sizes(n.shape(x)[axis], n.wholes_or(1, "split"), n.outputs());
  const auto all = parts(n, x, axis, sizes);
  for (std::size_t i = 0; i < all.size(); ++i) n.set(all[i], i);
}

void read_split_to_sequence(NodeReader& n) {
  const Value x = n.value(0);
  const std::size_t axis = checked_axis(n.attributes.whole("axis", 0), n.shape(x).size()), extent = n.shape(x)[axis];
  if (!n.has(1) || n.attributes.whole("keepdims", 1) == 0)
    fail("parts without a dimension are not supported: use Split");
  auto sizes = n.wholes(1);
  if (n.input_shape(1).empty()) {  // the size of all parts but the last
    const std::int64_t most = sizes[0];
    if (most < 1) fail("its parts have {} elements", most);
    if (extent > kMostConstantElements) fail("its {} elements are too many to be split", extent);
    sizes.clear();
    for (auto left = static_cast<std::int64_t>(extent); left > 0; left -= most) sizes.push_back(std::min(most, left));
  }
  Sequence sequence;
  for (const Value part : parts(n, x, axis, split_sizes(extent, sizes, sizes.size())))
    sequence.push_back(Computed{part});
  n.set(Item(std::move(sequence)));
}

void read_sequence_at(NodeReader& n) {
  const auto* sequence = n.as<Sequence>(0);
  if (sequence == nullptr) fail("its input is not a sequence");
  const auto place = n.wholes(1);
  if (place.size() != 1) fail("its position must be one number");
  n.set((*sequence)[checked_axis(place[0], sequence->size())]);
}

void read_expand(NodeReader& n) {
  Shape to;
  for (const std::int64_t extent : n.wholes(1)) {
    if (extent < 1 || static_cast<std::size_t>(extent) > kMostConstantElements)
      fail("its shape has the extent {}", extent);
    to.push_back(static_cast<std::size_t>(extent));
  }
  const Value x = n.value(0);
  const auto images = n.following(1);
  if (images.size() > 1) fail("several dimensions of its shape follow the number of images");
  n.set(images.empty() ? n.expand(x, to) : n.expand_by_batch(x, to, images[0]));
}

void read_tile(NodeReader& n) {
  Value x = n.value(0);
  auto repeats = n.wholes(1);
  const Shape shape = n.shape(x);
  if (repeats.size() != shape.size()) fail("its repeats do not fit {}", n.text(x));
  const auto images = n.following(1);
  for (const std::size_t axis : images) {
    if (images.size() > 1 || n.builder().batch(x) || repeats[axis] != static_cast<std::int64_t>(n.batch()))
      fail("its repeats depend on the number of images in a way that is not supported");
    repeats[axis] = 1;
  }
  for (std::size_t axis = 0; axis < repeats.size(); ++axis) {
    if (repeats[axis] == 1) continue;
    if (repeats[axis] < 1 || static_cast<std::size_t>(repeats[axis]) > kMostConstantElements / shape[axis])
      fail("its repeats of {} are {}", n.text(x), repeats[axis]);
    std::vector<std::size_t> indices;
    for (std::int64_t i = 0; i < repeats[axis]; ++i)
      for (std::size_t k = 0; k < shape[axis]; ++k) indices.push_back(k);
    x = n.gather(x, axis, indices);
  }
  n.set(images.empty() ? x : n.repeat_for_images(x, images[0]));
}

// Returns where the padded dimension's elements are before padding.
std::vector<std::size_t> padded_places(const std::string& mode, std::size_t extent, std::size_t before,
                                       std::size_t after) {
  const auto size = static_cast<std::int64_t>(extent), first = -static_cast<std::int64_t>(before);
  if (extent + before + after > kMostConstantElements) fail("its input is too large to be padded");
  if (mode == "reflect" && (before >= extent || after >= extent)) fail("its pads are larger than the images");
  std::vector<std::size_t> places;
  for (std::int64_t i = first; i < size + static_cast<std::int64_t>(after); ++i) {
    std::int64_t place = std::clamp<std::int64_t>(i, 0, size - 1);
    if (mode == "reflect" && i < 0) place = -i;
    if (mode == "reflect" && i >= size) place = 2 * (size - 1) - i;
    if (mode == "wrap") place = (i % size + size) % size;
    places.push_back(static_cast<std::size_t>(place));
  }
  return places;
}

// Negative pads remove elements.
Value cropped(NodeReader& n, Value x, std::vector<std::int64_t>& before, std::vector<std::int64_t>& after) {
  for (std::size_t axis = 0; axis < before.size(); ++axis) {
    const auto extent = static_cast<std::int64_t>(n.shape(x)[axis]);
    const std::int64_t begin = std::max<std::int64_t>(0, -before[axis]);
    const std::int64_t end = extent - std::max<std::int64_t>(0, -after[axis]);
    if (begin >= end) fail("its pads remove everything");
    x = n.slice(x, axis, static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    before[axis] = std::max<std::int64_t>(0, before[axis]);
    after[axis] = std::max<std::int64_t>(0, after[axis]);
  }
  return x;
}

void read_pad(NodeReader& n) {
  Value x = n.value(0);
  const std::size_t rank = n.shape(x).size();
  const auto pads = n.wholes_or(1, "pads");
  std::vector<std::int64_t> axes(rank), before(rank), after(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (n.has(3)) axes = n.wholes(3);
  if (pads.size() != 2 * axes.size()) fail("its pads do not fit {}", n.text(x));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = checked_axis(axes[i], rank);
    before[axis] = pads[i];
    after[axis] = pads[i + axes.size()];
    for (const std::int64_t pad : {before[axis], after[axis]})
      if (pad < -(1 << 20) || pad > (1 << 20)) fail("its pads have the extent {}", pad);
  }
  x = cropped(n, x, before, after);
  const std::string mode = n.attributes.text("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    fail("its mode \"{}\" is not supported: use constant, reflect, edge or wrap", mode);
  if (mode == "constant") {
    const double value = n.has(2) ? n.expect_number(2) : 0;
    const Pad pad{{before.begin(), before.end()}, {after.begin(), after.end()}, static_cast<float>(value)};
    if (std::ranges::all_of(pads, [](std::int64_t extent) { return extent <= 0; })) return n.set(x);
    for (std::size_t axis = 0; axis < rank; ++axis)
      if (pad.before[axis] + pad.after[axis] > 0) n.expect_not_batch(x, axis);
    return n.set(n.add(pad, {x}));
  }
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (before[axis] > 0 || after[axis] > 0)
      x = n.gather(x, axis,
                   padded_places(mode, n.shape(x)[axis], static_cast<std::size_t>(before[axis]),
                                 static_cast<std::size_t>(after[axis])));
  n.set(x);
}

std::size_t block_size(NodeReader& n, const Shape& shape) {
  const std::int64_t block = n.attributes.whole("blocksize", 0);
  if (shape.size() != 4 || block < 1 || block > (1 << 10))
    fail("its blocksize of {} does not fit {}", block, to_string(shape));
  return static_cast<std::size_t>(block);
}

void read_depth_to_space(NodeReader& n) {
  const Value x = n.value(0);
  const Shape s = n.shape(x);
  const std::size_t b = block_size(n, s), channels = s[1] / (b * b);
  if (channels * b * b != s[1]) fail("{} channels cannot be divided into {}x{} blocks", s[1], b, b);
  const bool columns_first = n.attributes.text("mode", "DCR") == "CRD";
  const Shape split = columns_first ? Shape{s[0], channels, b, b, s[2], s[3]} : Shape{s[0], b, b, channels, s[2], s[3]};
  const std::vector<std::size_t> order =
      columns_first ? std::vector<std::size_t>{0, 1, 4, 2, 5, 3} : std::vector<std::size_t>{0, 3, 4, 1, 5, 2};
  n.set(n.reshape(n.transpose(n.reshape(x, split, 0), order), {s[0], channels, s[2] * b, s[3] * b}, 0));
}

void read_space_to_depth(NodeReader& n) {
  const Value x = n.value(0);
  const Shape s = n.shape(x);
  const std::size_t b = block_size(n, s);
  if (s[2] % b != 0 || s[3] % b != 0) fail("{} cannot be divided into {}x{} blocks", to_string(s), b, b);
  const Value split = n.reshape(x, {s[0], s[1], s[2] / b, b, s[3] / b, b}, 0);
  n.set(n.reshape(n.transpose(split, {0, 3, 5, 1, 2, 4}), {s[0], s[1] * b * b, s[2] / b, s[3] / b}, 0));
}

}  // namespace

Value NodeReader::squeeze(Value x, const std::vector<std::size_t>& axes) {
  const auto place = builder().batch(x);
  Shape to = shape(x);
  std::optional<std::size_t> batch_axis;
  if (place) {
    if (std::ranges::find(axes, place->axis) != axes.end()) fail("it removes the batch's dimension");
    const auto before = std::ranges::count_if(axes, [&](std::size_t axis) { return axis < place->axis; });
    batch_axis = place->axis - static_cast<std::size_t>(before);
  }
  for (std::size_t i = axes.size(); i-- > 0;) to.erase(to.begin() + at(axes[i]));
  return reshape(x, to, batch_axis);
}

Value NodeReader::expand_by_batch(Value x, Shape to, std::size_t axis) {
  const auto place = builder().batch(x);
  if (to[axis] != batch()) fail("its shape depends on the number of images in a way that is not supported");
  if (place) {
    if (place->axis + to.size() - shape(x).size() != axis) fail("it repeats images for every image of a batch");
    return expand(x, to);
  }
  to[axis] = 1;
  x = expand(x, to);
  if (shape(x)[axis] != 1) fail("it repeats {} for every image of a batch", text(x));
  return repeat_for_images(x, axis);
}

Value NodeReader::expand_to_batch(Value x, const Shape& to, const BatchPlace& place) {
  Shape shape = to;
  if (place.outer != 1 || to[place.axis] != batch())
    fail("it mixes images and constants in a way that is not supported");
  shape[place.axis] = Expand::kBatch;
  return add(Expand{shape}, {x, Graph::kImages});
}

void add_shaping(ReadNodes& all) {
  all["Identity"] = read_same;
  all["Cast"] = read_cast;
  all["CastLike"] = read_cast_like;
  all["Shape"] = read_shape;
  all["Size"] = read_size;
  all["Reshape"] = read_reshape;
  all["Flatten"] = read_flatten;
  all["Squeeze"] = read_squeeze;
  all["Unsqueeze"] = read_unsqueeze;
  all["Transpose"] = read_transpose;
  all["Concat"] = read_concat;
  all["Slice"] = read_slice;
  all["Gather"] = read_gather;
  all["GatherND"] = read_gather_nd;
  all["ScatterND"] = read_scatter_nd;
  all["Split"] = read_split;
  all["SplitToSequence"] = read_split_to_sequence;
  all["SequenceAt"] = read_sequence_at;
  all["Expand"] = read_expand;
  all["Tile"] = read_tile;
  all["Pad"] = read_pad;
  all["DepthToSpace"] = read_depth_to_space;
  all["SpaceToDepth"] = read_space_to_depth;
}

}  // namespace annulus
