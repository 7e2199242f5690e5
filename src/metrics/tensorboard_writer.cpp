#include "src/metrics/tensorboard_writer.h"

#include <fmt/format.h>
#include <tensorboard.pb.h>

#include <bit>

#include "kernels/base/error.h"

namespace annulus {
namespace {

template <class T>
std::string bytes_of(T number) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

// CRC32C (Castagnoli), reflected, bit by bit: fast enough for events of a few hundred bytes.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc % 2 != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

// Masked because a CRC of data that contains CRCs is weak.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

// TensorBoard reads a folder's files in name order, so names do not depend on clocks and hosts.
std::filesystem::path next_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("{}: cannot create this folder: {}", folder.string(), error.message());
  for (std::size_t number = 1;; ++number) {
    const std::filesystem::path file = folder / fmt::format("events.out.tfevents.{:06}", number);
    if (!std::filesystem::exists(file, error) && !error) return file;
    if (error) fail("{}: {}", file.string(), error.message());
  }
}

void append(GrowingFile& file, const tensorboard::Event& event) {
  file.append(tf_record(event.SerializeAsString()));
}

}  // namespace

std::string tf_record(std::string_view bytes) {
  const std::string length = bytes_of(std::uint64_t{bytes.size()});
  return length + bytes_of(masked_crc(length)) + std::string(bytes) + bytes_of(masked_crc(bytes));
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::uint64_t step)
    : file_(next_file(folder)) {
  tensorboard::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_file_version("brain.Event:2");
  append(file_, event);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  event.set_step(static_cast<std::int64_t>(step) + 1);  // ignore this and later steps in earlier files
  append(file_, event);
}

void TensorBoardWriter::write(const MetricsRecord& record) {
  tensorboard::Event event;
  event.set_wall_time(record.time);
  event.set_step(static_cast<std::int64_t>(record.step));
  for (std::size_t value = 0; value < MetricsRecord::kValues; ++value) {
    if (!record.values[value]) continue;
    tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(fmt::format("{}/{}", record.kind, MetricsRecord::name(value)));
    scalar.set_simple_value(static_cast<float>(*record.values[value]));
  }
  append(file_, event);
}

}  // namespace annulus
