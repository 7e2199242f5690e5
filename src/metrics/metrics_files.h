#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/metrics/metrics_writer.h"

namespace annulus {

std::vector<std::string> metrics_formats();  // their names

// The metrics of a run in all formats that are wanted. Watching must not end what is watched: a file that cannot be
// written is told once, and the run goes on.
class MetricsFiles {
 public:
  using Warn = std::function<void(const std::string& line)>;

  // Of a run that writes to the folder `out` and goes on after `step`, 0 where it begins.
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
