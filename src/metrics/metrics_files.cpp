#include "src/metrics/metrics_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/metrics/csv_writer.h"
#include "src/metrics/json_lines_writer.h"
#include "src/metrics/prometheus_writer.h"
#include "src/metrics/tensorboard_writer.h"

namespace annulus {
namespace {

struct Format {
  const char* name;
  std::unique_ptr<MetricsWriter> (*make)(const std::filesystem::path& out, std::uint64_t step);
};

constexpr Format kFormats[] = {
    {"jsonl",
     [](const std::filesystem::path& out, std::uint64_t step) -> std::unique_ptr<MetricsWriter> {
       return std::make_unique<JsonLinesWriter>(out / "metrics.jsonl", step);
     }},
    {"csv",
     [](const std::filesystem::path& out, std::uint64_t step) -> std::unique_ptr<MetricsWriter> {
       return std::make_unique<CsvWriter>(out / "metrics.csv", step);
     }},
    {"tensorboard",
     [](const std::filesystem::path& out, std::uint64_t step) -> std::unique_ptr<MetricsWriter> {
       return std::make_unique<TensorBoardWriter>(out / "tensorboard", step);
     }},
    {"prometheus",
     [](const std::filesystem::path& out, std::uint64_t) -> std::unique_ptr<MetricsWriter> {
       return std::make_unique<PrometheusWriter>(out / "metrics.prom");
     }},
};

std::string warning(const Error& error) {
  return fmt::format("  warning     {}; training continues, but its metrics are incomplete", error.what());
}

}  // namespace

std::vector<std::string> metrics_formats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

MetricsFiles::MetricsFiles(const std::vector<std::string>& formats, const std::filesystem::path& out,
                           std::uint64_t step, Warn warn)
    : warn_(std::move(warn)) {
  for (const Format& format : kFormats) {
    if (std::ranges::find(formats, format.name) == formats.end()) continue;
    try {
      outputs_.push_back({format.make(out, step)});
    } catch (const Error& error) {
      warn_(warning(error));
    }
  }
}

void MetricsFiles::write(const MetricsRecord& record) {
  for (Output& output : outputs_) try {
      output.writer->write(record);
    } catch (const Error& error) {
      if (!std::exchange(output.failed, true)) warn_(warning(error));
    }
}

}  // namespace annulus
