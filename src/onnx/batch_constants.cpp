#include "src/onnx/batch_constants.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

bool same(const HostTensor& a, const HostTensor& b) {
  const auto equal = [](double x, double y) { return x == y || (x != x && y != y); };
  return a.kind == b.kind && a.shape == b.shape && a.wholes == b.wholes && std::ranges::equal(a.reals, b.reals, equal);
}

// The element of a tensor for part `part` of image `image`, if a dimension of its shape is of parts of images.
struct Places {
  std::size_t rows, batch, parts, inner;  // the extents before, of, and after the dimension
  bool images_first;

  std::size_t at(std::size_t row, std::size_t image, std::size_t part, std::size_t i) const {
    const std::size_t place = images_first ? image * parts + part : part * batch + image;
    return (row * batch * parts + place) * inner + i;
  }

  // Calls visit(place of the first image, place of another one) for all.
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

std::size_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  return elements(
      Shape(shape.begin() + static_cast<std::ptrdiff_t>(begin), shape.begin() + static_cast<std::ptrdiff_t>(end)));
}

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

}  // namespace

// The second batch has several images, the first one perhaps not.
PerImage per_image(const HostTensor& tensor, std::size_t batch) {
  const std::size_t axis = batch_axis(tensor, batch), images = other_batch(batch);
  const HostTensor& other = for_other_batch(tensor);
  for (const bool images_first : {true, false}) {
    const Places places{product(other.shape, 0, axis), images, other.shape[axis] / images,
                        product(other.shape, axis + 1, other.shape.size()), images_first};
    if (places.all_of([&](std::size_t a, std::size_t b) { return other.at(a) == other.at(b); }))
      return {first_image(other, places, axis), axis, images_first};
  }
  fail_for_numbers();
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
  draft().layer(all).outer = images_first ? 1 : parts;
  return all;
}

Value NodeReader::for_images(Value x, std::size_t axis, const BatchPlace& place, std::size_t extent) {
  const Shape shape = this->shape(x);
  if (draft().batch(x) || extent == 1 || shape[axis] != extent) return x;
  const std::size_t parts = extent / batch();
  if (place.outer != 1 && place.outer != parts) fail("it mixes images and constants: export with an open batch");
  const bool images_first = place.outer == 1;
  if (batch() == 1) return repeat_for_images(x, axis, images_first);
  const auto* constant = draft().computed_by<Constant>(x);
  if (constant == nullptr) fail("a parameter has other values for each image of a batch: export with an open batch");
  const HostTensor tensor = real_numbers(shape, {constant->values.begin(), constant->values.end()});
  const Places places{product(shape, 0, axis), batch(), parts, product(shape, axis + 1, shape.size()), images_first};
  if (!places.all_of([&](std::size_t a, std::size_t b) { return tensor.at(a) == tensor.at(b); })) fail_for_numbers();
  const Value one = add(as_layer(first_image(tensor, places, axis)), {});
  return parts == 1 ? one : repeat_for_images(one, axis, images_first);
}

Shape NodeReader::other_input_shape(std::size_t input) const {
  const std::size_t other = other_batch(batch());
  if (const auto* computed = as<Computed>(input)) return reader_.draft_.shape(computed->value, other);
  if (const auto* host = as<Host>(input)) return for_other_batch(**host).shape;
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
