#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/weights/safetensors.h"

namespace annulus {

// A network's weights in a single safetensors file, or in several that an index lists (model.safetensors.index.json, as
// Hugging Face stores large networks): a JSON object in which weight_map has each tensor's file, beside the index.
class WeightFiles {
 public:
  // Throws Error naming the file and the problem: no such file, tensors that the index lists and a file lacks, and
  // other kinds of files, such as PyTorch's, with the way to convert them.
  explicit WeightFiles(const std::filesystem::path& file);

  const std::map<std::string, Shape>& shapes() const { return shapes_; }
  std::vector<float> read(const std::string& name) const;  // see SafetensorsFile

 private:
  void add(const std::filesystem::path& file, const std::vector<std::string>& listed);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> places_;  // the file's number, and the tensor's in it
};

// Whether the file has HDF5's signature, as a checkpoint has.
bool is_hdf5(const std::filesystem::path& file);

}  // namespace annulus
