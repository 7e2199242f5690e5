#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "kernels/cuda/vendor/cudnn_graph.h"

namespace annulus::cuda {

// Keeps measured times and choices in a JSON file. A choice holds for a single GPU kind and cuDNN version; a file may
// contain choices for many. Several processes may use a file at the same time: each replaces the whole file by the
// current content plus the process's own measurements. (When two processes write at the same instant, choices may get
// lost, and are then measured again.)
class ConvolutionTuning {
 public:
  // `platform` names the GPU and the cuDNN version. A file that does not exist counts as empty. Throws Error if the
  // file has another format.
  ConvolutionTuning(std::filesystem::path file, std::string platform);

  // Without a choice, cuDNN has no usable plan, or the entry times another kind of work.
  struct Measured {
    std::optional<cudnn::Choice> choice{};
    double microseconds = std::numeric_limits<double>::infinity();
    bool unmeasured = false;  // the time for tuning was over: chosen by heuristics, or counted as slow
  };

  const std::filesystem::path& file() const { return file_; }
  std::optional<Measured> find(const std::string& problem) const;
  // Writes the file. What another process has measured meanwhile replaces an unmeasured choice there.
  void add(const std::string& problem, const Measured& measured);

 private:
  std::filesystem::path file_;
  std::string platform_;
  std::map<std::string, Measured> measured_;  // on this platform
};

}  // namespace annulus::cuda
