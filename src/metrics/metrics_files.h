#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/metrics/metrics_writer.h"

namespace annulus {

std::vector<std::string> metrics_formats();  // their names

// A run's metrics in all requested formats. Metrics must not abort the run: if a file cannot be written, this is
// reported once and the run continues.
class MetricsFiles {
 public:
  using Warn = std::function<void(const std::string& line)>;

  // `out`: the run's output folder. `step`: the run continues after it; 0 for a new run.
  MetricsFiles(const std::vector<std::string>& formats, const std::filesystem::path& out, std::uint64_t step,
               Warn warn);

  void write(const MetricsRecord& record);

 private:
  struct Output {
    std::unique_ptr<MetricsWriter> writer;
    bool failed = false;
  };

  const Warn warn_;
  std::vector<Output> outputs_;
};

}  // namespace annulus
