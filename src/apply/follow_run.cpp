#include "src/apply/follow_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
#include "src/io/json.h"
#include "src/io/printable.h"
#include "src/job/consistency.h"
#include "src/metrics/growing_file.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr double kPollSeconds = 0.25;

// The options that the results depend on.
nlohmann::json relevant(const EvaluateOptions& options) {
  const auto absolute = [](const fs::path& name) {  // the same with and without a final slash
    return fs::absolute(name / "").lexically_normal().parent_path().string();
  };
  std::vector<std::string> data;
  for (const std::string& name : options.data.files) data.push_back(absolute(name));
  return {{"--follow", absolute(options.checkpoint)},
          {"--data", fmt::format("{}", fmt::join(data, " "))},
          {"--image", fmt::to_string(options.data.image)},
          {"--length", fmt::to_string(options.data.length)},
          {"--split", options.split},
          {"--weights", options.weights},
          {"--per-class", fmt::to_string(options.per_class)}};
}

// The results file, a line for each checkpoint.
class Lines {
 public:
  // Continues the file, dropping a torn last line, or starts it anew with `options.overwrite`. Throws Error if other
  // options wrote it.
  explicit Lines(const EvaluateOptions& options) : options_(relevant(options)), file_(options.json) {
    std::ifstream stream(options.json);
    std::uint64_t whole = 0;
    for (std::string line; !options.overwrite && std::getline(stream, line) && !stream.eof(); whole += line.size() + 1)
      take(try_parse_json(line));
    file_.cut(whole);
  }

  const std::set<std::uint64_t>& steps() const { return steps_; }
  const std::string& run_began() const { return run_began_; }  // empty if no line says it
  void add(nlohmann::json json, const std::string& run_began) {
    json["options"] = options_;
    json["run_began"] = run_began;
    file_.append(std::string(kRunEvaluationMark) + json.dump().substr(1) + '\n');
  }

 private:
  void take(const nlohmann::json& json) {
    constexpr std::string_view advice = "give another file, or --overwrite to start it anew";
    if (!json.is_object() || !json.contains("options") || !json.contains("step") || !json["step"].is_number_unsigned())
      fail("{}: has a damaged line; {}", file_.path().string(), advice);
    for (const auto& [option, now] : options_.items())
      if (const auto before = member_or<std::string>(json["options"], option.c_str(), ""); before != now)
        fail("{}: has evaluations with {} {}, not {}; {}", file_.path().string(), option, before,
             now.get<std::string>(), advice);
    steps_.insert(json["step"].get<std::uint64_t>());
    run_began_ = member_or(json, "run_began", run_began_);
  }

  const nlohmann::json options_;
  GrowingFile file_;
  std::set<std::uint64_t> steps_;
  std::string run_began_;
};

// The run, as rank 0 sees it.
class Run {
 public:
  enum class State : std::uint8_t { going_on, ended, abandoned };

  // `began`: when the run began for which checkpoints were evaluated before; empty if none were.
  Run(const fs::path& folder, double grace, std::string began)
      : folder_(folder), checkpoints_(folder, 1), grace_(grace), began_(std::move(began)) {}

  // Looks whether a process holds the folder or waits for it, and for new checkpoints, by which a run on a file system
  // without locks is seen to go on. A run that has not begun goes on. Throws Error if another run has begun here.
  State look() {
    read_results();
    // In this order: a job that takes the run over releases the first when it has the second, and a job's last
    // checkpoint is there when it ends.
    const bool held = is_claimed(next_claim(folder_)) || is_claimed(folder_);
    const std::uint64_t before = newest();
    found_ = checkpoints_.list();
    if (held || newest() != before || !is_marked(folder_)) {
      idle_since_.reset();
    } else if (!idle_since_) {
      idle_since_ = now_seconds();
    }
    if (!held && finished_) return State::ended;
    return idle_since_ && now_seconds() - *idle_since_ > grace_ ? State::abandoned : State::going_on;
  }

  const std::string& began() const { return began_; }

  // Returns the oldest checkpoint from the last look() that is not among `done`, if any.
  std::optional<CheckpointFolder::Numbered> next(const std::set<std::uint64_t>& done) const {
    const auto found =
        std::find_if(found_.rbegin(), found_.rend(), [&](const auto& one) { return !done.contains(one.step); });
    return found == found_.rend() ? std::nullopt : std::optional(*found);
  }

 private:
  std::uint64_t newest() const { return found_.empty() ? 0 : found_.front().step; }

  void read_results() {
    finished_ = false;
    nlohmann::json results;
    try {
      results = read_json(folder_ / "results.json");
    } catch (const std::exception&) {
      return;  // not yet written
    }
    const auto status = member_or<std::string>(results, "status", ""), began = member_or(results, "began", began_);
    finished_ = status == "complete" || status == "stopped";
    if (!began_.empty() && began != began_)
      fail(
          "{}: this run began at {}, and the evaluations are of one that began at {}; give another --json file, or "
          "--overwrite to start it anew",
          folder_.string(), began, began_);
    began_ = began;
  }

  const fs::path folder_;
  const CheckpointFolder checkpoints_;
  const double grace_;
  std::string began_;
  bool finished_ = false;
  std::vector<CheckpointFolder::Numbered> found_;
  std::optional<double> idle_since_;
};

enum class Order : std::uint8_t { wait, evaluate, end };

// What all ranks do next, decided by rank 0.
struct Decision {
  Order order = Order::wait;
  std::uint64_t step = 0;
};

Decision decide(const EvaluateOptions& options, Run& run, const std::set<std::uint64_t>& done, bool may_evaluate) {
  const Run::State state = run.look();
  const bool goes_on = state == Run::State::going_on;
  if (const auto next = run.next(done))
    return may_evaluate || !goes_on ? Decision{Order::evaluate, next->step} : Decision{};
  if (state == Run::State::abandoned)
    fail("{}: its last job ({}) has ended, and no other has continued the run for {:g} s (--grace)",
         options.checkpoint.string(), claimant(options.checkpoint), options.grace);
  return {goes_on ? Order::wait : Order::end};
}

// Opens a checkpoint on all ranks; returns nothing if any rank cannot. The root then prints the reason, unless the run
// has removed the file.
std::optional<CheckpointFile> open_together(const World& world, const fs::path& file) {
  std::optional<CheckpointFile> found;
  std::string reason;
  try {
    found.emplace(file);
    expect_usable(*found);
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
    if (world.root() && !options.json.empty()) lines.emplace(options);
  });
  Run run(options.checkpoint, options.grace, lines ? lines->run_began() : "");
  const CheckpointFolder checkpoints(options.checkpoint, 1);
  std::set<std::uint64_t> done = lines ? lines->steps() : std::set<std::uint64_t>{};
  std::optional<CheckpointEvaluator> evaluator;
  double next_begin = 0;
  while (true) {
    activity.enter(Activity::Phase::meeting);
    Decision decision;
    if (world.root()) decision = decide(options, run, done, now_seconds() >= next_begin);
    world.broadcast(std::as_writable_bytes(std::span(&decision, 1)));
    if (decision.order == Order::end) return;
    if (decision.order == Order::wait) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
      continue;
    }
    next_begin = now_seconds() + options.interval;
    done.insert(decision.step);
    activity.enter(Activity::Phase::opening);
    const std::optional<CheckpointFile> file = open_together(world, checkpoints.file_of(decision.step));
    if (!file) continue;
    if (!evaluator) evaluator.emplace(world, options, *file, activity);
    const nlohmann::json json = evaluator->evaluate(*file);
    if (lines) lines->add(json, run.began());
  }
}

}  // namespace annulus
