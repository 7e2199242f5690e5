#pragma once

#include "src/metrics/growing_file.h"
#include "src/metrics/metrics_writer.h"

namespace annulus {

// A table with a row for each record and a column for each value, under a line with their names. Where a record has no
// such value its field is empty.
class CsvWriter : public MetricsWriter {
 public:
  // Of a run that goes on after `step`: rows of later ones are cut off, and what has other columns.
  CsvWriter(const std::filesystem::path& file, std::uint64_t step);
  void write(const MetricsRecord& record) override;

 private:
  GrowingFile file_;
};

}  // namespace annulus
