#include "src/bench/bench_input.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/median.h"
#include "kernels/base/random.h"
#include "src/data/bad_samples.h"
#include "src/data/loader.h"
#include "src/data/open_samples.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/open_device.h"
#include "src/metrics/results.h"
#include "src/step/choose_decoder.h"

namespace annulus {
namespace {

// Reading and copying take turns, because a machine's speed drifts.
constexpr double kTurnSeconds = 0.2;
constexpr double kMostTurns = 20;
constexpr double kQuietSeconds = 0.02;

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Times and amounts in an interval: a rank's, or the sum over all.
struct Spent {
  double wall = 0, processors = 0;
  ReadTimes read;
  double waiting = 0;  // the threads' waiting time, for batches to be consumed

  // Returns a thread's bytes/s while it reads.
  double read_speed() const { return static_cast<double>(read.bytes) / read.reading; }

  Spent& operator+=(const Spent& other) {
    wall += other.wall;
    processors += other.processors;
    read += other.read;
    waiting += other.waiting;
    return *this;
  }
};

class Stopwatch {
 public:
  Stopwatch(const Loader& loader, std::size_t workers) : loader_(loader), workers_(workers) {}
  Spent spent() const {
    Spent found{now_seconds() - wall_, processor_seconds() - processors_, loader_.times() - read_, 0};
    found.waiting = std::max(0.0, static_cast<double>(workers_) * found.wall - found.read.sum());
    return found;
  }

 private:
  const Loader& loader_;
  const std::size_t workers_;
  const double wall_ = now_seconds(), processors_ = processor_seconds();
  const ReadTimes read_ = loader_.times();
};

Spent sum(const World& world, const Spent& own) {
  const ReadTimes& r = own.read;
  std::array<double, 10> all{own.wall,
                             own.processors,
                             own.waiting,
                             r.reading,
                             r.decoding,
                             r.resizing,
                             r.augmenting,
                             static_cast<double>(r.samples),
                             static_cast<double>(r.bytes),
                             static_cast<double>(r.by_device)};
  world.sum(all);
  Spent found{all[0] / world.size(), all[1], {all[3], all[4], all[5], all[6]}, all[2]};
  found.read.samples = static_cast<std::uint64_t>(all[7]);
  found.read.bytes = static_cast<std::uint64_t>(all[8]);
  found.read.by_device = static_cast<std::uint64_t>(all[9]);
  return found;
}

// Copies images in memory as a loader copies them from files: from random positions in more memory than caches hold, or
// in as much as the data set has, to consecutive places in batches.
class Copying {
 public:
  Copying(const DatasetInfo& data, std::size_t places)
      : image_bytes_(data.image_bytes()),
        copies_(std::max<std::size_t>(kCopied / image_bytes_, 1)),
        images_(std::min(copies_, data.size)),
        places_(places),
        source_(allocate_host(images_ * image_bytes_)),
        to_(places * image_bytes_, 1) {}

  // Bytes/s.
  double measure() {
    const double begun = now_seconds();
    for (std::size_t i = 0; i < copies_; ++i)
      std::memcpy(to_.data() + i % places_ * image_bytes_, source_.view().address + mix(i) % images_ * image_bytes_,
                  image_bytes_);
    return static_cast<double>(copies_ * image_bytes_) / (now_seconds() - begun);
  }

 private:
  static constexpr std::size_t kCopied = std::size_t{256} << 20;

  const std::size_t image_bytes_, copies_, images_, places_;
  const Buffer source_;  // on huge pages, which are fastest
  decltype(Batch::images) to_;
};

// Waits until the threads have prefetched all they may; otherwise they would read on while something else is measured.
// A thread counts samples in a batch after it has read them.
void await_readers(const Loader& loader, double batch_seconds) {
  const std::chrono::duration<double> quiet(std::max(kQuietSeconds, 2 * batch_seconds));
  std::uint64_t before;
  do {
    before = loader.times().samples;
    std::this_thread::sleep_for(quiet);
  } while (loader.times().samples != before);
}

// Averages the medians of all ranks that have values; 0 if none has.
double mean_of_ranks(const World& world, const std::vector<double>& shares) {
  std::array<double, 2> all{shares.empty() ? 0 : median(shares), shares.empty() ? 0.0 : 1.0};
  world.sum(all);
  return all[1] > 0 ? all[0] / all[1] : 0;
}

struct Row {
  const char* name;
  double seconds;
};

std::array<Row, 5> rows_of(const Spent& spent) {
  const ReadTimes& r = spent.read;
  return {{{"reading", r.reading},
           {"decoding", r.decoding},
           {"resizing", r.resizing},
           {"augmenting", r.augmenting},
           {"waiting", spent.waiting}}};
}

void print(const InputPlan& plan, const Spent& all, double share_of_copying) {
  const auto images = static_cast<double>(all.read.samples);
  const char* const sample = plan.is_text() ? "window" : "image";
  fmt::print("{}\n", to_string(plan));
  fmt::print("{}, {:.0f} for each busy processor; {:.1f} MB/s read\n",
             emphasized(stdout, Emphasis::headline, fmt::format("{:.0f} {}s/s", images / all.wall, sample)),
             images / all.processors, 1e-6 * static_cast<double>(all.read.bytes) / all.wall);
  if (plan.make_decoder)
    fmt::print("the GPU decoded {:.1f} % of the images\n", 100 * static_cast<double>(all.read.by_device) / images);
  if (share_of_copying > 0)
    fmt::print("a thread copies {:.0f} MB/s from files, {:.0f} % of its memcpy speed\n", 1e-6 * all.read_speed(),
               100 * share_of_copying);
  fmt::print("where a thread's time went:\n");
  const double whole = all.read.sum() + all.waiting;
  for (const Row& row : rows_of(all))
    fmt::print("  {:<12}{:>10.3f} ms {} {} {:>7.1f} %\n", row.name, 1e3 * row.seconds / images,
               plan.is_text() ? "a" : "an", sample, 100 * row.seconds / whole);
}

nlohmann::json to_json(const InputPlan& plan, const Spent& all, double share_of_copying, std::size_t skipped) {
  const auto images = static_cast<double>(all.read.samples);
  nlohmann::json json{{"version", ANNULUS_VERSION},
                      {"input", to_string(plan)},
                      {"workers", plan.workers},
                      {"seconds", all.wall},
                      {"images", all.read.samples},
                      {"skipped", skipped},
                      {"images_per_second", images / all.wall},
                      {"images_per_processor_second", images / all.processors},
                      {"bytes_per_second", static_cast<double>(all.read.bytes) / all.wall}};
  if (plan.make_decoder) json["images_by_gpu"] = all.read.by_device;
  if (share_of_copying > 0) json["share_of_copying"] = share_of_copying;
  for (const Row& row : rows_of(all)) json["thread_seconds"][row.name] = row.seconds;
  return json;
}

}  // namespace

void bench_input(const World& world, const BenchInputOptions& options) {
  check_same_command(world, "bench input");
  const std::unique_ptr<const Samples> opened =
      open_samples(data_files(options.data.files), options.split, options.data.length);
  const Samples& dataset = *opened;
  InputPlan plan = plan_input(options.data, dataset.info(), Purpose::training, 1);
  const std::size_t global_batch = options.batch * static_cast<std::size_t>(world.size());
  const BatchRequest batches{options.seed, global_batch, world.rank(),       world.size(),
                             {},           UINT64_MAX,   world.local_rank(), world.local_size()};
  const std::string& decode = options.data.decode;
  if (decode == "gpu" || (decode == "auto" && dataset.info().encoded()))
    set_decoder(world, *open_device(world, {}), dataset, plan, batches, decode);
  Loader loader(dataset, plan, batches);
  BadSamples bad(world.rank());
  std::size_t skipped = 0;
  for (std::size_t i = 0; i <= plan.prefetch; ++i)
    skipped += bad.report(loader.next());  // warm-up: touches the memory once
  world.barrier();
  Spent own;
  std::optional<Copying> copying;
  if (!dataset.info().encoded() && !dataset.info().is_text())
    copying.emplace(dataset.info(), (plan.prefetch + 1) * options.batch);
  std::vector<double> shares;  // relative to the speed of copying, for each turn
  const auto turns = static_cast<int>(std::clamp(options.seconds / kTurnSeconds, 1.0, kMostTurns));
  Meter meter(world.root(), Meter::Style::bar);
  meter.begin();
  for (int turn = 0; turn < turns; ++turn) {
    if (meter.due())
      meter.show("reading", static_cast<double>(turn) / turns,
                 fmt::format("{:.0f} images/s on rank 0", static_cast<double>(own.read.samples) / own.wall));
    const Stopwatch stopwatch(loader, plan.workers);
    const double end = now_seconds() + options.seconds / turns;
    while (now_seconds() < end) skipped += bad.report(loader.next());
    const Spent spent = stopwatch.spent();
    own += spent;
    if (!copying || spent.read.bytes == 0) continue;
    await_readers(loader, spent.wall * static_cast<double>(options.batch) / static_cast<double>(spent.read.samples));
    shares.push_back(spent.read_speed() / copying->measure());
  }
  meter.clear();
  const double share = mean_of_ranks(world, shares);
  const Spent all = sum(world, own);
  skipped = skipped_on_all_ranks(world, skipped);
  if (!world.root()) return;
  print(plan, all, share);
  if (skipped > 0) fmt::print("{} bad images were skipped\n", skipped);
  if (!options.json.empty()) write_json(options.json, FileKind::input_benchmark, to_json(plan, all, share, skipped));
}

}  // namespace annulus
