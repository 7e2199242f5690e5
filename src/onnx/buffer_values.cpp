#include "src/onnx/buffer_values.h"

#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "src/onnx/file.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

constexpr std::size_t kFewest = 4;  // elements

// A stored tensor's values, without a copy if they are stored as float32's bytes.
class Reals {
 public:
  explicit Reals(const onnx::TensorProto& tensor) : tensor_(&tensor), shape_(checked_shape(tensor)) {
    size_ = elements(shape_);
    if (tensor.data_type() != onnx::TensorProto::FLOAT || !tensor.has_raw_data()) copied_ = read_tensor(tensor).reals;
  }

  const onnx::TensorProto* tensor() const { return tensor_; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return size_; }
  double operator[](std::size_t i) const {
    if (!copied_.empty()) return copied_[i];
    float value;
    std::memcpy(&value, tensor_->raw_data().data() + i * sizeof value, sizeof value);
    return value;
  }

 private:
  const onnx::TensorProto* tensor_;
  Shape shape_;
  std::size_t size_;
  std::vector<double> copied_;
};

// Whether pairs of elements are a sine and a cosine, in whichever order. Ones beside zeros, as new norms have them, are
// none, nor are gains of sqrt(1/2).
template <class Pair>
bool are_sines(std::size_t pairs, const Pair& pair) {
  std::size_t between = 0;
  double least = 1, largest = -1;
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto [a, b] = pair(i);
    if (!(std::fabs(a * a + b * b - 1) < 2e-3)) return false;
    between += std::fabs(a * b) > 0.05;
    least = std::min(least, double{a});
    largest = std::max(largest, double{a});
  }
  return between >= 2 && largest - least > 0.05;
}

// Whether a table's rows have sines and cosines side by side, or in halves.
bool has_sines(const Reals& table) {
  const std::size_t row = table.shape().empty() ? 0 : table.shape().back();
  if (row == 0 || row % 2 != 0 || table.size() < 2 * row) return false;
  if (row == 2 && table.shape().size() < 3) return false;  // a small orthogonal matrix
  const std::size_t half = row / 2;
  return are_sines(table.size() / 2, [&](std::size_t i) { return std::pair(table[2 * i], table[2 * i + 1]); }) ||
         are_sines(table.size() / 2, [&](std::size_t i) {
           const std::size_t at = i / half * row + i % half;
           return std::pair(table[at], table[at + half]);
         });
}

bool is_geometric(const Reals& sequence) {
  if (sequence.shape().size() != 1 || sequence.size() < kFewest) return false;
  const double ratio = sequence[1] / sequence[0];
  if (!(sequence[0] > 0 && ratio > 0 && ratio < 0.999)) return false;
  for (std::size_t i = 1; i < sequence.size(); ++i)
    if (!(std::fabs(sequence[i] / sequence[i - 1] / ratio - 1) < 1e-4)) return false;
  return true;
}

bool is_mask(const Reals& mask) {
  constexpr double kLow = -1e4;
  std::size_t low = 0;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0 && !(mask[i] <= kLow)) return false;
    low += mask[i] != 0;
  }
  return low > 0 && mask.size() > 1;
}

}  // namespace

std::map<const onnx::TensorProto*, const char*> buffers_by_values(const onnx::GraphProto& graph) {
  constexpr const char* kSines = "sines and cosines, as buffers have them: to train them, export with dynamo=True";
  constexpr const char* kSequence = "a geometric sequence, as buffers have it: to train it, export with dynamo=True";
  constexpr const char* kMask = "a mask";
  std::map<const onnx::TensorProto*, const char*> found;
  std::map<Shape, std::vector<Reals>> others;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    if (!is_real(tensor) || OnnxFile::stripped(tensor)) continue;
    Reals values(tensor);
    if (values.size() == 0) continue;
    const char* reason = has_sines(values)      ? kSines
                         : is_geometric(values) ? kSequence
                         : is_mask(values)      ? kMask
                                                : nullptr;
    if (reason != nullptr)
      found.emplace(&tensor, reason);
    else if (values.size() >= kFewest)
      others[values.shape()].push_back(std::move(values));
  }
  for (const auto& [shape, tensors] : others)
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::size_t k = i + 1; k < tensors.size(); ++k) {
        const Reals &a = tensors[i], &b = tensors[k];
        if (!are_sines(a.size(), [&](std::size_t at) { return std::pair(a[at], b[at]); })) continue;
        found.emplace(a.tensor(), kSines);
        found.emplace(b.tensor(), kSines);
      }
  return found;
}

}  // namespace annulus
