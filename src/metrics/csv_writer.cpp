#include "src/metrics/csv_writer.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

namespace annulus {
namespace {

std::string header() {
  std::string text = "step,kind,epoch,time";
  for (std::size_t value = 0; value < MetricsRecord::kValues; ++value) text += ',' + MetricsRecord::name(value);
  return text;
}

std::optional<std::uint64_t> step_of_row(std::string_view line) {
  if (line == header()) return 0;
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (error != std::errc{} || end == line.data() + line.size() || *end != ',') return {};
  return step;
}

// Returns `file`, which does not exist or has our columns afterwards.
const std::filesystem::path& with_our_columns(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return file;  // a pipe would block
  std::ifstream stream(file);
  std::string line;
  if (std::getline(stream, line) && line.starts_with("step,kind,") && line != header())
    std::filesystem::rename(file, file.string() + ".old");
  return file;
}

}  // namespace

CsvWriter::CsvWriter(const std::filesystem::path& file, std::uint64_t step) : file_(with_our_columns(file)) {
  keep_lines_until(file_, step, step_of_row);
  if (file_.size() == 0) file_.append(header() + '\n');
}

void CsvWriter::write(const MetricsRecord& record) {
  std::string row = fmt::format("{},{},{},{}", record.step, record.kind, record.epoch, record.time);
  for (const std::optional<double>& value : record.values) row += value ? fmt::format(",{}", *value) : ",";
  file_.append(row + '\n');
}

}  // namespace annulus
