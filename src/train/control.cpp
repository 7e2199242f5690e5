#include "src/train/control.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/io/atomic_file.h"
#include "src/io/folder_claim.h"
#include "src/io/json.h"

namespace annulus {
namespace {

constexpr double kPatience = 30;  // seconds: a run reads requests between steps

std::filesystem::path request_file(const std::filesystem::path& run) {
  return run / "control.json";
}

std::filesystem::path answer_file(const std::filesystem::path& run) {
  return run / "control-answer.json";
}

void write(const std::filesystem::path& file, const nlohmann::json& json) {
  const std::string text = json.dump() + '\n';
  write_atomically(file, std::as_bytes(std::span(text)));
}

// Returns the file's object and removes it; nothing if there is none.
std::optional<nlohmann::json> take(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};  // a pipe would block the run
  std::ifstream stream(file);
  if (!stream) return {};
  nlohmann::json json = try_parse_json(stream);
  std::filesystem::remove(file);
  return json.is_object() ? std::optional(json) : std::nullopt;
}

}  // namespace

void ask_to_exclude(const std::filesystem::path& run, int rank) {
  if (!is_claimed(run)) fail("{}: no run is writing to this folder", run.string());
  take(answer_file(run));
  write(request_file(run), {{"exclude", rank}});
  for (const double begun = now_seconds(); now_seconds() - begun < kPatience;) {
    const bool goes_on = is_claimed(run);  // before looking: it may answer and end
    if (const auto answer = take(answer_file(run))) {
      const std::string refusal = member_or<std::string>(*answer, "refusal", "");
      if (!refusal.empty()) fail("{}: {}", run.string(), refusal);
      fmt::print("the run goes on without rank {}\n", rank);
      return;
    }
    if (!goes_on) {
      take(request_file(run));
      fail("{}: the run ended without an answer", run.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  take(request_file(run));
  fail("{}: no answer in {:g} s: only runs with --survive answer, between two steps", run.string(), kPatience);
}

void discard_requests(const std::filesystem::path& run) {
  take(request_file(run));
  take(answer_file(run));
}

void answer_request(const std::filesystem::path& run, const std::function<std::string(int rank)>& exclude) {
  const auto request = take(request_file(run));
  if (!request) return;
  const bool complete = request->contains("exclude") && (*request)["exclude"].is_number_integer();
  write(answer_file(run), {{"refusal", complete ? exclude((*request)["exclude"].get<int>()) : "unknown request"}});
}

}  // namespace annulus
