#pragma once

#include "src/metrics/metrics_record.h"

namespace annulus {

// A file, or several, that tell how a run goes, for people and tools that watch it: a record can be read as soon as it
// was written.
class MetricsWriter {
 public:
  virtual ~MetricsWriter() = default;

  // Their steps ascend. Throws Error; then nothing of the record is there.
  virtual void write(const MetricsRecord& record) = 0;
};

}  // namespace annulus
