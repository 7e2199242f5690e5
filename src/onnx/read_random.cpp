#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/reader.h"

// Dropout and stochastic depth.
namespace annulus {
namespace {

void read_dropout(NodeReader& n) {
  if (n.used(1)) fail("its mask is not supported: use only its output");
  double rate = n.attributes.real("ratio", 0.5f);
  if (n.has(1)) {
    rate = n.expect_number(1);
  } else if (n.operators() >= 12) {
    rate = 0.5;
  }
  if (n.operators() >= 12 && n.number(2).value_or(0) == 0) rate = 0;  // it was exported for inference
  if (!(rate >= 0 && rate < 1)) fail("its ratio is {}, but it must be at least 0 and below 1", rate);
  if (rate == 0) return n.set(n.item(0));
  RandomMask mask{n.input_shape(0), 1 - rate, 1 / (1 - rate)};
  n.set(n.masked(n.value(0), mask));
}

void read_uniform_like(NodeReader& n) {
  if (n.attributes.real("low", 0) != 0 || n.attributes.real("high", 1) != 1)
    fail("random numbers other than of 0 to 1 are not supported: use Dropout");
  n.set(RandomMask{n.input_shape(0)});
}

// Each element is 1 with the probability that the input has.
void read_bernoulli(NodeReader& n) {
  RandomMask mask{n.input_shape(0)};
  mask.kept = n.expect_number(0);
  n.set(mask);
}

}  // namespace

bool compares_random_numbers(NodeReader& n, bool less) {
  const auto* mask = n.as<RandomMask>(0);
  if (mask == nullptr) return false;
  const auto limit = n.number(1);
  if (mask->kept || !limit) fail("this comparison of random numbers is not supported: use Dropout");
  RandomMask decided = *mask;
  decided.kept = less ? *limit : 1 - *limit;
  n.set(decided);
  return true;
}

Value NodeReader::masked(Value x, const RandomMask& mask) {
  const Shape shape = this->shape(x);
  const bool each = mask.shape == shape;
  if (builder().batch(x) != BatchPlace{0, 1}) fail("only dropout of images is supported");
  const bool samples = mask.shape.size() == shape.size() && mask.shape[0] == batch() && elements(mask.shape) == batch();
  if (!mask.kept || !(*mask.kept > 0 && *mask.kept <= 1) || !(each || samples))
    fail("this use of random numbers is not supported: use Dropout");
  if (*mask.kept == 1) return linear(x, mask.scale, 0);
  const Value dropped = add(Dropout{static_cast<float>(1 - *mask.kept), 0, samples && !each}, {x, Graph::kSampleKeys});
  const double factor = mask.scale * *mask.kept;
  return std::abs(factor - 1) < 1e-5 ? dropped : linear(dropped, factor, 0);
}

void add_random(ReadNodes& all) {
  all["Dropout"] = read_dropout;
  all["RandomUniformLike"] = read_uniform_like;
  all["Bernoulli"] = read_bernoulli;
}

}  // namespace annulus
