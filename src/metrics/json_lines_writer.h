#pragma once

#include "src/metrics/growing_file.h"
#include "src/metrics/metrics_writer.h"

namespace annulus {

// A JSON line for each record: {"step":50,"kind":"train","epoch":0.05,"time":1700000000.0,"loss":0.7,...}.
class JsonLinesWriter : public MetricsWriter {
 public:
  // `step`: the run continues after it. Cuts off lines for later steps.
  JsonLinesWriter(const std::filesystem::path& file, std::uint64_t step);
  void write(const MetricsRecord& record) override;

 private:
  GrowingFile file_;
};

}  // namespace annulus
