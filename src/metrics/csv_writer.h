#pragma once

#include "src/metrics/growing_file.h"
#include "src/metrics/metrics_writer.h"

namespace annulus {

// A table with a header line, a row for each record and a column for each value. A missing value's field is empty.
class CsvWriter : public MetricsWriter {
 public:
  // `step`: the run continues after it. Cuts off rows for later steps. A table with other columns, from an earlier
  // version of the program, is renamed to FILE.old.
  CsvWriter(const std::filesystem::path& file, std::uint64_t step);
  void write(const MetricsRecord& record) override;

 private:
  GrowingFile file_;
};

}  // namespace annulus
