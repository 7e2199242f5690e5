#pragma once

#include <string>
#include <string_view>

#include "src/metrics/growing_file.h"
#include "src/metrics/metrics_writer.h"

namespace annulus {

// Returns a record for a TFRecord file: length, the length's checksum, bytes, the bytes' checksum; all numbers are
// little-endian. Checksums are masked CRC32Cs (https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords
// format details").
std::string tf_record(std::string_view bytes);

// Writes TensorBoard event files with scalars such as train/loss. Each start of a run writes a new file. It begins with
// the step after which the run continues, so that TensorBoard ignores later steps in earlier files.
class TensorBoardWriter : public MetricsWriter {
 public:
  TensorBoardWriter(const std::filesystem::path& folder, std::uint64_t step);
  void write(const MetricsRecord& record) override;

 private:
  GrowingFile file_;
};

}  // namespace annulus
