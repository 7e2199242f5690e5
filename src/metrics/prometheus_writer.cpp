#include "src/metrics/prometheus_writer.h"

#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <system_error>

#include "kernels/base/error.h"

namespace annulus {
namespace {

std::string label_value(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

}  // namespace

PrometheusWriter::PrometheusWriter(const std::filesystem::path& file) : file_(file) {}

void PrometheusWriter::write(const MetricsRecord& record) {
  latest_.insert_or_assign(std::string(record.kind), record);
  const std::filesystem::path part = file_.string() + ".partial";
  std::ofstream stream(part, std::ios::trunc);
  stream << text();
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(part, file_, error);
  if (!stream || error) {
    std::filesystem::remove(part, error);
    fail("{}: cannot write", file_.string());
  }
}

std::string PrometheusWriter::text() const {
  using ValueOf = std::function<std::optional<double>(const MetricsRecord&)>;
  const std::string run = label_value(file_.parent_path().string());
  std::string text;
  const auto add = [&](const std::string& name, const std::string& help, const ValueOf& value_of) {
    std::string samples;
    for (const auto& [kind, record] : latest_)
      if (const auto value = value_of(record))
        samples += fmt::format("annulus_{}{{run=\"{}\",kind=\"{}\"}} {}\n", name, run, kind, *value);
    if (samples.empty()) return;
    text +=
        fmt::format("# HELP annulus_{0} {1} of the latest record.\n# TYPE annulus_{0} gauge\n", name, help) + samples;
  };
  add("step", "Step", [](const MetricsRecord& r) { return std::optional(static_cast<double>(r.step)); });
  add("epoch", "Epochs done", [](const MetricsRecord& r) { return std::optional(r.epoch); });
  add("record_timestamp_seconds", "Unix time", [](const MetricsRecord& r) { return std::optional(r.time); });
  for (std::size_t value = 0; value < MetricsRecord::kValues; ++value)
    add(MetricsRecord::name(value), "The value " + MetricsRecord::name(value),
        [value](const MetricsRecord& r) { return r.values[value]; });
  return text;
}

}  // namespace annulus
