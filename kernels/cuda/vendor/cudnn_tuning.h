#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "kernels/cuda/vendor/cudnn_graph.h"

namespace annulus::cuda {

// Measured times and choices, kept in a JSON file. A choice holds for one kind of GPU and one version of cuDNN; a file
// may contain choices for many. Several processes may use one file at the same time: each replaces the whole file by
// its current content plus the process's own measurements. (If two processes write at the same instant, one may lose
// the other's choices, which are then measured again.)
class ConvolutionTuning {
 public:
  // `platform` names the GPU and the version of cuDNN. A file that does not exist counts as empty. Throws Error if the
  // file has another format.
  ConvolutionTuning(std::filesystem::path file, std::string platform);

  // An entry without a choice is one for which cuDNN has no usable plan, or the time of another kind of work.
  struct Measured {
    std::optional<cudnn::Choice> choice{};
    double microseconds = std::numeric_limits<double>::infinity();
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
