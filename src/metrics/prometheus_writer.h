#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "src/metrics/metrics_writer.h"

namespace annulus {

// The latest record of each kind as gauges in the Prometheus text format 0.0.4, for the textfile collector of
// node_exporter: annulus_loss{run="build/run",kind="train"} 0.7. A record replaces the file atomically, so that no
// reader sees a part; the file is not flushed to the disk.
class PrometheusWriter : public MetricsWriter {
 public:
  explicit PrometheusWriter(const std::filesystem::path& file);
  void write(const MetricsRecord& record) override;

 private:
  std::string text() const;

  std::filesystem::path file_;
  std::map<std::string, MetricsRecord, std::less<>> latest_;  // by kind
};

}  // namespace annulus
