#pragma once

#include "src/metrics/metrics_record.h"

namespace annulus {

// Writes metrics to a file or several, for users and tools that monitor a run: a record is readable as soon as write()
// returns.
class MetricsWriter {
 public:
  virtual ~MetricsWriter() = default;

  // REQUIRES: steps ascend. Throws Error and then leaves no part of the record in the file.
  virtual void write(const MetricsRecord& record) = 0;
};

}  // namespace annulus
