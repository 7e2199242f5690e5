#include "src/onnx/batch_constants.h"

#include <algorithm>
#include <map>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"
#include "src/onnx/fold.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

bool same(const HostTensor& a, const HostTensor& b) {
  const auto equal = [](double x, double y) { return x == y || (x != x && y != y); };
  return a.kind == b.kind && a.shape == b.shape && a.wholes == b.wholes && std::ranges::equal(a.reals, b.reals, equal);
}

// A tensor's elements for an image's part, if a dimension consists of images' parts.
struct Places {
  std::size_t rows, batch, parts, inner;  // the extents before, within, and after the dimension
  bool images_first;

  std::size_t at(std::size_t row, std::size_t image, std::size_t part, std::size_t i) const {
    const std::size_t place = images_first ? image * parts + part : part * batch + image;
    return (row * batch * parts + place) * inner + i;
  }

  // Calls visit(the first image's place, another image's place) for all.
  template <class Visit>
  bool all_of(const Visit& visit) const {
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t part = 0; part < parts; ++part)
        for (std::size_t i = 0; i < inner; ++i)
          for (std::size_t image = 0; image < batch; ++image)
            if (!visit(at(row, 0, part, i), at(row, image, part, i))) return false;
    return true;
  }
};

}  // namespace

HostTensor for_batches(HostTensor tensor, HostTensor other) {
  tensor.other_batch.reset();
  other.other_batch.reset();
  if (!same(tensor, other)) tensor.other_batch = std::make_shared<const HostTensor>(std::move(other));
  return tensor;
}

const HostTensor& for_other_batch(const HostTensor& tensor) {
  return tensor.other_batch != nullptr ? *tensor.other_batch : tensor;
}

std::optional<HostTensor> evaluate_for_batches(const std::string& op, const Attributes& attributes,
                                               const std::vector<std::shared_ptr<const HostTensor>>& inputs) {
  std::vector<const HostTensor*> here, other;
  bool follows = false;
  for (const auto& input : inputs) {
    here.push_back(input.get());
    other.push_back(input != nullptr ? &for_other_batch(*input) : nullptr);
    follows = follows || here.back() != other.back();
  }
  auto result = evaluate(op, attributes, here);
  if (!result) return result;
  result->other_batch.reset();
  if (!follows) return result;
  try {
    return for_batches(std::move(*result), *evaluate(op, attributes, other));
  } catch (const Error&) {  // the file has the batch elsewhere as a number
    return evaluate(op, attributes, here);
  }
}

namespace {

// The only dimension that follows the batch.
std::size_t batch_axis(const HostTensor& tensor, std::size_t batch) {
  const Shape &shape = tensor.shape, &other = for_other_batch(tensor).shape;
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < shape.size() && shape.size() == other.size(); ++i)
    if (shape[i] != other[i]) axes.push_back(i);
  const auto parts = [&](const Shape& of, std::size_t images) {
    return of[axes[0]] % images == 0 ? of[axes[0]] / images : 0;
  };
  if (axes.size() != 1 || parts(shape, batch) == 0 || parts(shape, batch) != parts(other, other_batch(batch)))
    fail("a constant depends on the number of images in a batch, which differs in training: export without it");
  return axes[0];
}

[[noreturn]] void fail_for_numbers() {
  fail("a constant has other values for each image of a batch, such as their numbers: export without it");
}

Constant as_layer(const HostTensor& tensor) {
  Constant constant{tensor.shape, {}};
  for (std::size_t i = 0; i < tensor.size(); ++i) constant.values.push_back(static_cast<float>(tensor.at(i)));
  return constant;
}

HostTensor first_image(const HostTensor& tensor, const Places& places, std::size_t axis) {
  HostTensor one{tensor.kind, tensor.shape, {}, {}};
  one.shape[axis] = places.parts;
  for (std::size_t row = 0; row < places.rows; ++row)
    for (std::size_t part = 0; part < places.parts; ++part)
      for (std::size_t i = 0; i < places.inner; ++i) {
        const std::size_t at = places.at(row, 0, part, i);
        if (tensor.real())
          one.reals.push_back(tensor.reals[at]);
        else
          one.wholes.push_back(tensor.wholes[at]);
      }
  return one;
}

// Returns a constant's first image; nothing if the images differ.
std::optional<Constant> image_of(const Constant& constant, const Places& places, std::size_t axis) {
  const HostTensor tensor = real_numbers(constant.shape, {constant.values.begin(), constant.values.end()});
  if (!places.all_of([&](std::size_t a, std::size_t b) { return tensor.at(a) == tensor.at(b); })) return std::nullopt;
  return as_layer(first_image(tensor, places, axis));
}

// Returns the table rows that are selected for the first image, if the same rows are selected for each.
std::optional<Value> repeated_rows(NodeReader& n, Value x) {
  const auto* gather = n.builder().computed_by<Gather>(x);
  if (gather == nullptr || gather->axis != 0 || gather->indices.size() % n.batch() != 0) return std::nullopt;
  const std::size_t rows = gather->indices.size() / n.batch();
  for (std::size_t i = rows; i < gather->indices.size(); ++i)
    if (gather->indices[i] != gather->indices[i - rows]) return std::nullopt;
  const std::vector<std::size_t> indices(gather->indices.begin(),
                                         gather->indices.begin() + static_cast<std::ptrdiff_t>(rows));
  return n.gather(n.builder().layer(x).inputs[0], 0, indices);
}

// Returns the image that a value repeats for the file's batch: a tile, a table's rows, or a constant with equal images,
// or with equal parts of images in `extent` rows.
std::optional<Value> repeated_image(NodeReader& n, Value x, std::size_t extent) {
  const Shape shape = n.shape(x);
  if (const auto rows = repeated_rows(n, x)) return rows;
  if (shape.empty() || (shape[0] != n.batch() && shape[0] != extent)) return std::nullopt;
  if (const auto* constant = n.builder().computed_by<Constant>(x)) {
    const Places places{1, n.batch(), shape[0] / n.batch(), elements(shape, 1, shape.size()), true};
    const auto one = image_of(*constant, places, 0);
    return one ? std::optional(n.add(*one, {})) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

// The second batch has several images, the first perhaps not.
PerImage per_image(const HostTensor& tensor, std::size_t batch) {
  const std::size_t axis = batch_axis(tensor, batch), images = other_batch(batch);
  const HostTensor& other = for_other_batch(tensor);
  for (const bool images_first : {true, false}) {
    const Places places{elements(other.shape, 0, axis), images, other.shape[axis] / images,
                        elements(other.shape, axis + 1, other.shape.size()), images_first};
    if (places.all_of([&](std::size_t a, std::size_t b) { return other.at(a) == other.at(b); }))
      return {first_image(other, places, axis), axis, images_first};
  }
  fail_for_numbers();
}

std::optional<PerImage> NodeReader::for_each_sample(const HostTensor& constant) const {
  if (constant.other_batch != nullptr) return per_image(constant, batch());
  const std::size_t length = task().tokens.length;
  if (!task().reads_tokens() || constant.real() || constant.shape != Shape{batch(), length}) return std::nullopt;
  const Places windows{1, batch(), 1, length, true};
  if (!windows.all_of([&](std::size_t a, std::size_t b) { return constant.wholes[a] == constant.wholes[b]; }))
    return std::nullopt;
  return PerImage{first_image(constant, windows, 0), 0, true};
}

Host NodeReader::constant_beside(std::size_t input, Value images) const {
  const Host host = constant(input);
  const auto place = reader_.builder_.batch(images);
  const std::size_t rank = shape(images).size();
  if (host == nullptr || host->other_batch == nullptr || !place || host->shape.size() > rank) return host;
  PerImage one = per_image(*host, batch());
  const bool same_place = place->outer == 1 && one.axis + rank - host->shape.size() == place->axis;
  if (!same_place || one.values.shape[one.axis] != 1) return host;
  return std::make_shared<const HostTensor>(std::move(one.values));
}

Value NodeReader::repeat_for_images(const HostTensor& constant) {
  const PerImage one = per_image(constant, batch());
  return repeat_for_images(add(as_layer(one.values), {}), one.axis, one.images_first);
}

Value NodeReader::repeat_for_images(Value x, std::size_t axis, bool images_first) {
  const Shape shape = this->shape(x);
  Shape split = shape;
  const std::size_t parts = shape[axis], place = parts == 1 || images_first ? axis : axis + 1;
  if (parts > 1) split.insert(split.begin() + static_cast<std::ptrdiff_t>(place), 1);
  x = reshape(x, split);
  split[place] = Expand::kBatch;
  const Value repeated = add(Expand{split}, {x, Graph::kImages});
  if (parts == 1) return repeated;
  Shape merged = shape;
  merged[axis] = Reshape::kInferred;
  const Value all = add(Reshape{merged}, {repeated});
  builder().layer(all).outer = images_first ? 1 : parts;
  return all;
}

Value NodeReader::for_images(Value x, std::size_t axis, const BatchPlace& place, std::size_t extent) {
  const Shape shape = this->shape(x);
  if (builder().batch(x) || extent == 1 || shape[axis] != extent) return x;
  const std::size_t parts = extent / batch();
  if (place.outer != 1 && place.outer != parts) fail("it mixes images and constants: export with an open batch");
  const bool images_first = place.outer == 1;
  if (batch() == 1) return repeat_for_images(x, axis, images_first);
  const auto* constant = builder().computed_by<Constant>(x);
  if (constant == nullptr) {
    const Value repeated = with_repeated_constants(x, extent);
    if (builder().batch(repeated) == BatchPlace{axis, place.outer}) return repeated;
    fail("parameters are combined with images of a batch of {}: export with an open batch", batch());
  }
  const Places places{elements(shape, 0, axis), batch(), parts, elements(shape, axis + 1, shape.size()), images_first};
  const auto one = image_of(*constant, places, axis);
  if (!one) fail_for_numbers();
  const Value layer = add(*one, {});
  return parts == 1 ? layer : repeat_for_images(layer, axis, images_first);
}

// What is computed from repetitions for the file's batch is computed again from repetitions for every image.
Value NodeReader::with_repeated_constants(Value x, std::size_t extent) {
  const std::vector<bool> used = builder().used_layers(x);
  std::map<Value, Value> made;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const Value old = Graph::output(i);
    const Shape shape = this->shape(old);
    if (const auto image = repeated_image(*this, old, extent)) {
      made[old] = repeat_for_images(*image, 0);
      continue;
    }
    GraphBuilder::Layer layer = builder().layer(old);
    std::optional<BatchPlace> place;
    for (Value& input : layer.inputs) {
      if (!made.contains(input)) continue;
      input = made.at(input);
      place = builder().batch(input);
    }
    if (!place) continue;
    layer.outer = place->outer;
    const bool reshapes = builder().computed_by<Reshape>(old) != nullptr;
    made[old] = reshapes ? reshape(layer.inputs[0], shape) : builder().add(std::move(layer));
    if (this->shape(made[old]) != shape) fail("it mixes the images of a batch");
  }
  return made.contains(x) ? made.at(x) : x;
}

Shape NodeReader::other_input_shape(std::size_t input) const {
  const std::size_t other = other_batch(batch());
  if (const auto* computed = as<Computed>(input)) return reader_.builder_.shape(computed->value, other);
  if (const auto* host = as<Host>(input)) return for_other_batch(**host).shape;
  if (const auto* tokens = as<Tokens>(input)) return {other, tokens->shape[1]};
  return input_shape(input);
}

std::vector<std::size_t> NodeReader::following(std::size_t input) const {
  const HostTensor& tensor = expect_constant(input);
  const HostTensor& other = for_other_batch(tensor);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (i >= other.size() || tensor.at(i) != other.at(i)) places.push_back(i);
  return places;
}

void NodeReader::expect_same_for_batches(std::size_t input) const {
  const Host host = constant(input);
  if (host != nullptr && host->other_batch != nullptr)
    fail("its input {} depends on the number of images in a batch, which differs in training: export without it",
         input);
}

}  // namespace annulus
