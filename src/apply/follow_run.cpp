#include "src/apply/follow_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/io/folder_claim.h"
#include "src/io/printable.h"
#include "src/job/consistency.h"
#include "src/metrics/growing_file.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr double kPollSeconds = 0.25;

// The file of results, a line for each checkpoint.
class Lines {
 public:
  // Throws Error if the file has other lines than ours. A torn last line is cut off.
  explicit Lines(const fs::path& file) : file_(file) {
    std::ifstream stream(file);
    std::uint64_t whole = 0;
    for (std::string line; std::getline(stream, line) && !stream.eof(); whole += line.size() + 1) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || json.value("kind", "") != name(FileKind::evaluation) || !json.contains("step"))
        fail("{}: not a file of annulus eval --follow; choose another one", file.string());
      steps_.insert(json["step"].get<std::uint64_t>());
    }
    if (whole == 0 && file_.size() > 0)
      fail("{}: not a file of annulus eval --follow; choose another one", file.string());
    file_.cut(whole);
  }

  const std::set<std::uint64_t>& steps() const { return steps_; }
  void add(nlohmann::json json) {
    json["kind"] = name(FileKind::evaluation);
    file_.append(json.dump() + '\n');
  }

 private:
  GrowingFile file_;
  std::set<std::uint64_t> steps_;
};

// The run, as rank 0 sees it.
class Run {
 public:
  explicit Run(const fs::path& folder) : folder_(folder), checkpoints_(folder, 1) {}

  // Returns the oldest checkpoint that is not among `done`, if any.
  std::optional<CheckpointFolder::Numbered> next(const std::set<std::uint64_t>& done) const {
    const auto all = checkpoints_.list();
    const auto found =
        std::find_if(all.rbegin(), all.rend(), [&](const auto& one) { return !done.contains(one.step); });
    return found == all.rend() ? std::nullopt : std::optional(*found);
  }

  // Its process holds the folder, or waits for it. A file system without locks does not show that, but the results have
  // the status.
  bool has_ended() {
    // In this order: a job that takes the run over releases the first when it has the second.
    const bool held = is_claimed(next_claim(folder_)) || is_claimed(folder_);
    if (held) was_held_ = true;
    return !held && (was_held_ || finished());
  }

 private:
  bool finished() const {
    try {
      const std::string status = read_json(folder_ / "results.json").value("status", "");
      return status == "complete" || status == "stopped";
    } catch (const std::exception&) {
      return false;  // not yet written
    }
  }

  const fs::path folder_;
  const CheckpointFolder checkpoints_;
  bool was_held_ = false;
};

enum class Order : std::uint8_t { wait, evaluate, end };

// What all ranks do next, decided by rank 0.
struct Decision {
  Order order = Order::wait;
  std::uint64_t step = 0;
};

Decision decide(Run& run, const std::set<std::uint64_t>& done, bool may_evaluate) {
  const bool ended = run.has_ended();  // before looking: its last checkpoint is there by then
  const auto next = run.next(done);
  if (!next) return {ended ? Order::end : Order::wait};
  return may_evaluate || ended ? Decision{Order::evaluate, next->step} : Decision{};
}

// Reads a checkpoint on all ranks; nothing if any of them cannot. The root then prints the reason, unless the run has
// removed the file.
std::optional<Checkpoint> read_together(const World& world, const fs::path& file) {
  std::optional<Checkpoint> found;
  std::string reason;
  try {
    found = read_checkpoint(file);
    expect_usable(*found, file);
  } catch (const Error& error) {
    found.reset();
    reason = fs::exists(file) ? error.what() : "";
  }
  double all = found ? 1 : 0;
  world.minimum({&all, 1});
  for (const std::string& text : world.gather_texts(reason)) {
    if (text.empty()) continue;
    fmt::print("skipped a damaged checkpoint: {}\n", printable(text));
    std::fflush(stdout);
    break;
  }
  return all > 0 ? std::move(found) : std::nullopt;
}

}  // namespace

void follow_run(const World& world, const EvaluateOptions& options, Activity& activity) {
  activity.enter(Activity::Phase::comparing);
  check_same_command(world, "eval --follow");
  std::optional<Lines> lines;
  world.all_or_none([&] {
    if (world.root() && !options.json.empty()) lines.emplace(options.json);
  });
  Run run(options.checkpoint);
  const CheckpointFolder checkpoints(options.checkpoint, 1);
  std::set<std::uint64_t> done = lines ? lines->steps() : std::set<std::uint64_t>{};
  std::optional<CheckpointEvaluator> evaluator;
  double next_begin = 0;
  while (true) {
    activity.enter(Activity::Phase::meeting);
    Decision decision;
    if (world.root()) decision = decide(run, done, now_seconds() >= next_begin);
    world.broadcast(std::as_writable_bytes(std::span(&decision, 1)));
    if (decision.order == Order::end) return;
    if (decision.order == Order::wait) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
      continue;
    }
    next_begin = now_seconds() + options.interval;
    done.insert(decision.step);
    activity.enter(Activity::Phase::opening);
    const fs::path file = checkpoints.file_of(decision.step);
    const std::optional<Checkpoint> checkpoint = read_together(world, file);
    if (!checkpoint) continue;
    if (!evaluator) evaluator.emplace(world, options, *checkpoint, file, activity);
    const nlohmann::json json = evaluator->evaluate(*checkpoint, file);
    if (lines) lines->add(json);
  }
}

}  // namespace annulus
