#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "kernels/cuda/vendor/cudnn_graph.h"

namespace annulus::cuda {

// Measured choices, kept in a file of JSON. They hold for one kind of GPU and one version of cuDNN; a file may have
// those of many. Several processes may use one file at once: each replaces it as a whole, by what it finds there and
// what it measured itself. (Of two that write at the same instant one may miss the other's, which is then measured
// again.)
class ConvolutionTuning {
 public:
  // `platform` says for which GPU and which cuDNN. A file that does not exist is an empty one. Throws Error where it is
  // no such file.
  ConvolutionTuning(std::filesystem::path file, std::string platform);

  struct Measured {
    cudnn::Choice choice;
    double microseconds;
  };

  const std::filesystem::path& file() const { return file_; }
  std::optional<Measured> find(const std::string& problem) const;
  void add(const std::string& problem, const Measured& measured);  // writes the file

 private:
  std::filesystem::path file_;
  std::string platform_;
  std::map<std::string, Measured> measured_;  // of this platform
};

}  // namespace annulus::cuda
