#include "src/metrics/json_lines_writer.h"

#include <nlohmann/json.hpp>

#include "src/io/json.h"

namespace annulus {
namespace {

std::optional<std::uint64_t> step_of_line(std::string_view line) {
  const auto json = try_parse_json(line);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) return {};
  return json["step"].get<std::uint64_t>();
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::filesystem::path& file, std::uint64_t step) : file_(file) {
  keep_lines_until(file_, step, step_of_line);
}

void JsonLinesWriter::write(const MetricsRecord& record) {
  nlohmann::ordered_json json{
      {"step", record.step}, {"kind", record.kind}, {"epoch", record.epoch}, {"time", record.time}};
  for (std::size_t value = 0; value < MetricsRecord::kValues; ++value)
    if (record.values[value]) json[MetricsRecord::name(value)] = *record.values[value];
  if (!record.staleness_histogram.empty()) json["staleness_histogram"] = record.staleness_histogram;
  file_.append(json.dump() + '\n');
}

}  // namespace annulus
