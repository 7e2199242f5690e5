#include "kernels/cuda/vendor/cudnn_tuning.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "annulus convolution tuning 1";

// Leaves out what an entry does not have.
Json to_json(const ConvolutionTuning::Measured& measured) {
  Json json = Json::object();
  if (std::isfinite(measured.microseconds)) json["microseconds"] = measured.microseconds;
  if (measured.unmeasured) json["unmeasured"] = true;
  if (!measured.choice) return json;
  json["engine"] = measured.choice->engine;
  json["knobs"] = Json::object();
  for (const auto& [knob, value] : measured.choice->knobs) json["knobs"][std::to_string(knob)] = value;
  return json;
}

ConvolutionTuning::Measured from_json(const Json& json) {
  ConvolutionTuning::Measured measured;
  measured.microseconds = json.value("microseconds", measured.microseconds);
  measured.unmeasured = json.value("unmeasured", false);
  if (!json.contains("engine")) return measured;
  measured.choice = {json.at("engine").get<std::int64_t>(), {}};
  for (const auto& [knob, value] : json.at("knobs").items()) measured.choice->knobs[std::stoi(knob)] = value;
  return measured;
}

// Reads the whole file: {"format": ..., "platforms": {platform: {problem: measured}}}.
Json read(const std::filesystem::path& file) {
  std::error_code ignored;  // if the folder is not accessible, writing the file reports it
  if (!std::filesystem::exists(file, ignored)) return {{"format", kFormat}, {"platforms", Json::object()}};
  std::ifstream stream(file);
  if (!stream) fail("{}: cannot read it: check its permissions", file.string());
  const Json json = Json::parse(stream, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != kFormat || !json.value("platforms", Json()).is_object())
    fail("{}: not a file of measured convolution plans, or damaged: use another file, or delete it to measure again",
         file.string());
  return json;
}

void replace(const std::filesystem::path& file, const std::string& text) {
  std::string partial = file.string() + ".XXXXXX";  // a name of this process's own
  const int descriptor = ::mkstemp(partial.data());
  bool written = false;
  if (descriptor >= 0) {
    ::close(descriptor);
    std::ofstream stream(partial, std::ios::trunc);
    written = static_cast<bool>(stream << text << std::flush) && ::chmod(partial.c_str(), 0644) == 0;
  }
  if (written && std::rename(partial.c_str(), file.c_str()) == 0) return;
  const std::string reason = std::generic_category().message(errno);
  if (descriptor >= 0) ::unlink(partial.c_str());
  fail("{}: cannot write: {}; check the folder, its permissions and the space left", file.string(), reason);
}

}  // namespace

ConvolutionTuning::ConvolutionTuning(std::filesystem::path file, std::string platform)
    : file_(std::move(file)), platform_(std::move(platform)) {
  const Json json = read(file_);
  const auto mine = json.at("platforms").find(platform_);
  if (mine == json.at("platforms").end()) return;
  try {
    for (const auto& [problem, measured] : mine->items()) measured_.emplace(problem, from_json(measured));
  } catch (const std::exception& error) {
    fail("{}: invalid entries for {} ({}): delete the file to measure again", file_.string(), platform_, error.what());
  }
}

std::optional<ConvolutionTuning::Measured> ConvolutionTuning::find(const std::string& problem) const {
  const auto found = measured_.find(problem);
  return found == measured_.end() ? std::nullopt : std::optional(found->second);
}

void ConvolutionTuning::add(const std::string& problem, const Measured& measured) {
  measured_.insert_or_assign(problem, measured);
  Json json = read(file_);
  Json& mine = json["platforms"][platform_];
  for (const auto& [name, value] : measured_)
    if (!value.unmeasured || !mine.contains(name) || (value.choice && mine[name].value("unmeasured", false)))
      mine[name] = to_json(value);
  replace(file_, json.dump(1) + '\n');
}

}  // namespace annulus::cuda
