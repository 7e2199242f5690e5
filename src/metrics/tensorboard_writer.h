#pragma once

#include <string>
#include <string_view>

#include "src/metrics/growing_file.h"
#include "src/metrics/metrics_writer.h"

namespace annulus {

// A record of a TFRecord file: its length, the length's checksum, its bytes, their checksum, all numbers little-endian.
// Checksums are masked CRC32Cs (https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details").
std::string tf_record(std::string_view bytes);

// Files of events for TensorBoard, scalars such as train/loss. Each start of a run makes one of its own, which begins
// by saying after which step the run goes on: of what earlier files have of later ones TensorBoard shows nothing.
class TensorBoardWriter : public MetricsWriter {
 public:
  TensorBoardWriter(const std::filesystem::path& folder, std::uint64_t step);
  void write(const MetricsRecord& record) override;

 private:
  GrowingFile file_;
};

}  // namespace annulus
