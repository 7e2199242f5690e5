#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/io/file_descriptor.h"

namespace annulus {

// Weight files in the format of github.com/huggingface/safetensors: the header's length in 8 bytes, the header as JSON,
// with each tensor's type, shape and place, and the tensors' data. All numbers are little-endian.

// A tensor in a file, with row-major elements.
struct StoredTensor {
  std::string name;
  std::string type;  // "F32"
  Shape shape;
  std::uint64_t begin, end;  // in bytes from the start of the data
};

class SafetensorsFile {
 public:
  // Reads and checks the header: the tensors must fill the data without gaps or overlaps, and in the sizes that their
  // types and shapes need. Throws Error naming the file and the problem.
  explicit SafetensorsFile(const std::filesystem::path& file);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the data's order

  // Returns the elements of a tensor in this file as float32. Throws Error naming the tensor if it does not have
  // floating-point elements (F16, BF16, F32 or F64), or if an element is not finite in float32.
  std::vector<float> read(const StoredTensor& tensor) const;

 private:
  std::filesystem::path file_;
  FileDescriptor descriptor_;
  std::uint64_t data_begin_ = 0;
  std::vector<StoredTensor> tensors_;
};

// A tensor to write, F32 or I64.
struct TensorToStore {
  std::string name;
  Shape shape;
  std::variant<std::span<const float>, std::span<const std::int64_t>> elements;
};

// Creates or replaces `file` atomically. `metadata`: texts in addition to format and producer. Tensors are stored in
// the order that the format's own library uses, which aligns them: 8-byte elements first, then by name. Returns the
// file's size in bytes. Throws Error if it cannot be written.
std::uint64_t write_safetensors(const std::filesystem::path& file, std::vector<TensorToStore> tensors,
                                const std::map<std::string, std::string>& metadata);

}  // namespace annulus
