#include "src/apply/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "models/network/model.h"
#include "src/apply/image_files.h"
#include "src/apply/trained_network.h"
#include "src/checkpoint/restore.h"
#include "src/data/dataset.h"
#include "src/data/loader.h"
#include "src/import/split_folders.h"
#include "src/io/atomic_file.h"
#include "src/io/hash.h"
#include "src/io/json.h"
#include "src/io/printable.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/activity.h"
#include "src/job/consistency.h"
#include "src/job/open_device.h"
#include "src/step/infer.h"
#include "src/step/measure.h"

namespace annulus {
namespace {

// Images that are processed together, and their conversion to the network's input.
struct Source {
  std::unique_ptr<Samples> samples;
  InputPlan input;
};

Source open_data_file(const TrainedNetwork& network, const std::string& file, const std::string& split,
                      bool data_changed) {
  auto data = std::make_unique<Dataset>(data_files({file}), split);
  const DatasetInfo& info = data->info();
  expect_fitting_data(network.file, info, file, data_changed);
  const InputPlan input = evaluation_input(network.checkpoint(), info, network.input.workers);
  return {std::move(data), input};
}

// Returns a data file's name and split; nothing if the argument is an image or a folder.
std::optional<std::pair<std::string, std::string>> data_file(const std::string& name) {
  for (const std::string_view ending : {".h5", ".hdf5"}) {
    if (name.ends_with(ending)) return std::pair{name, std::string("test")};
    const std::size_t colon = name.rfind(':');
    if (colon != std::string::npos && name.substr(0, colon).ends_with(ending))
      return std::pair{name.substr(0, colon), name.substr(colon + 1)};
  }
  return std::nullopt;
}

void add_images(const std::string& name, std::vector<std::string>& images) {
  if (!std::filesystem::is_directory(name)) return images.push_back(name);
  const std::vector<FoundFile> found = images_in(name);
  if (found.empty()) fail("{}: has no images (.jpg, .jpeg, .png)", name);
  for (const FoundFile& image : found) images.push_back(image.path);  // problems are reported on reading
}

// Opens sources in the names' order; consecutive images form a single source.
std::vector<Source> open_sources(const TrainedNetwork& network, const PredictOptions& options) {
  std::vector<Source> sources;
  std::vector<std::string> images;
  const auto take_images = [&] {
    if (images.empty()) return;
    sources.push_back({std::make_unique<ImageFiles>(std::exchange(images, {}), network.input.channels), network.input});
  };
  for (const std::string& name : options.images) {
    const auto file = data_file(name);
    if (!file) {
      add_images(name, images);
      continue;
    }
    take_images();
    sources.push_back(open_data_file(network, file->first, file->second, options.data_changed));
  }
  take_images();
  return sources;
}

std::vector<const Samples*> samples_of(const std::vector<Source>& sources) {
  std::vector<const Samples*> all;
  for (const Source& source : sources) all.push_back(source.samples.get());
  return all;
}

// Returns each source's image count.
std::vector<std::size_t> sizes_of(const std::vector<Source>& sources) {
  std::vector<std::size_t> sizes;
  for (const Source& source : sources) sizes.push_back(source.samples->info().size);
  return sizes;
}

// Returns the `count` largest, in descending order; among equals the first, like accuracy.
std::vector<std::size_t> largest(std::span<const float> values, std::size_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(count, order.size()));
  std::partial_sort(order.begin(), end, order.end(), [values](std::size_t a, std::size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  order.erase(end, order.end());
  return order;
}

// Returns each class's probability: they add up to 1, or are independent if the network was trained with binary
// cross-entropy.
std::vector<double> probabilities(std::span<const float> logits, const CheckpointHeader& checkpoint) {
  std::vector<double> found(logits.begin(), logits.end());
  if (parse_loss(checkpoint.loss, checkpoint.data.labels) == Loss::binary) {
    for (double& value : found) value = 1 / (1 + std::exp(-value));
    return found;
  }
  const double largest = std::ranges::max(found);
  double total = 0;
  for (double& value : found) total += value = std::exp(value - largest);
  for (double& value : found) value /= total;
  return found;
}

nlohmann::json top_classes(std::span<const float> logits, const CheckpointHeader& checkpoint, std::size_t count) {
  nlohmann::json top = nlohmann::json::array();
  const std::vector<double> shares = probabilities(logits, checkpoint);
  for (const std::size_t c : largest(logits, count))
    top.push_back({{"class", checkpoint.data.classes[c]}, {"probability", shares[c]}, {"logit", logits[c]}});
  return top;
}

nlohmann::json named_values(std::span<const float> values, const std::vector<std::string>& names) {
  nlohmann::json all = nlohmann::json::array();
  for (std::size_t i = 0; i < values.size(); ++i) all.push_back({{"name", names[i]}, {"value", values[i]}});
  return all;
}

// Returns the classes with a number above a threshold.
nlohmann::json classes_above(float threshold, std::span<const float> numbers, const std::vector<std::string>& classes) {
  nlohmann::json names = nlohmann::json::array();
  for (std::size_t c = 0; c < numbers.size(); ++c)
    if (numbers[c] > threshold) names.push_back(classes[c]);
  return names;
}

// Returns an image's label, as named in its data file.
nlohmann::json label_of(const DatasetInfo& info, const Labels& label) {
  switch (info.labels) {
    case LabelKind::one_class:
      return info.classes[static_cast<std::size_t>(label.classes.front())];
    case LabelKind::several_classes:
      return classes_above(0.5f, label.targets, info.classes);
    case LabelKind::values:
    case LabelKind::tokens:  // images have none
      break;
  }
  return named_values(label.targets, info.classes);
}

// Returns an image's prediction.
nlohmann::json prediction(std::span<const float> logits, const CheckpointHeader& checkpoint, std::size_t top) {
  const DatasetInfo& data = checkpoint.data;
  if (data.labels == LabelKind::values) return {{"values", named_values(logits, data.classes)}};
  nlohmann::json found{{"top", top_classes(logits, checkpoint, top)}};
  if (data.labels == LabelKind::several_classes) found["classes"] = classes_above(0, logits, data.classes);
  return found;
}

// A rank's results for a batch's images, by sample.
using Findings = std::map<std::size_t, nlohmann::json>;

// Returns lines of JSON. File names may not be UTF-8.
std::string lines_of(const Findings& findings) {
  std::string lines;
  for (const auto& [sample, finding] : findings)
    lines += finding.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  return lines;
}

std::string text_of(const nlohmann::json& finding) {
  std::string text = printable(finding["image"].get<std::string>()) + ":";
  const char* separator = " ";
  const auto add = [&](const std::string& name, const std::string& number) {
    text += fmt::format("{}{} {}", separator, printable(name), number);
    separator = ", ";
  };
  if (finding.contains("values"))
    for (const nlohmann::json& entry : finding["values"])
      add(entry["name"], fmt::format("{:.6g}", entry["value"].get<double>()));
  else
    for (const nlohmann::json& entry : finding["top"])
      add(entry["class"], fmt::format("{:.1f} %", 100 * entry["probability"].get<double>()));
  return text;
}

// Rank 0's output.
class Report {
 public:
  // `trained`: the network's data.
  Report(const World& world, const std::filesystem::path& jsonl, const DatasetInfo& trained, std::size_t images)
      : root_(world.root()),
        labels_(trained.labels),
        classes_(trained.classes.begin(), trained.classes.end()),
        images_(images),
        begun_(now_seconds()),
        meter_(world.root() && !is_terminal(stdout), Meter::Style::bar) {  // results on a terminal show the progress
    if (world.root() && !jsonl.empty()) file_.emplace(jsonl);
    meter_.begin();
  }

  void add(const std::string& lines) {
    if (file_) {
      file_->write_at(written_, {reinterpret_cast<const std::uint8_t*>(lines.data()), lines.size()});
      written_ += lines.size();
    }
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line); ++count_) add(parse_json(line));
    meter_.show_samples("predicting", count_, images_);
  }

  void finish() {
    if (file_) file_->commit();
    meter_.clear();
    if (bad_ > 0) warn(fmt::format("{} of {} images could not be read", bad_, count_));
    if (root_) fmt::print(stderr, "{}\n", summary());
  }
  std::int64_t bad() const { return bad_; }

 private:
  void add(const nlohmann::json& finding) {
    if (!finding.contains("error")) {
      count_label(finding);
      return fmt::print("{}\n", text_of(finding));
    }
    meter_.clear();
    warn("skipped: " + printable(finding["error"].get<std::string>()));
    ++bad_;
  }

  static void warn(const std::string& text) {
    fmt::print(stderr, "{}{}\n", emphasized(stderr, Emphasis::warning, "annulus: "), text);
  }

  // Ignores classes that the network does not have.
  void count_label(const nlohmann::json& finding) {
    if (!finding.contains("label")) return;
    const nlohmann::json& label = finding["label"];
    if (labels_ == LabelKind::one_class && !classes_.contains(label.get<std::string>())) return;
    ++labelled_;
    switch (labels_) {
      case LabelKind::one_class:
        measured_ += finding["top"][0]["class"] == label;
        break;
      case LabelKind::several_classes:
        measured_ += finding["classes"] == label;
        break;
      case LabelKind::values:
        for (std::size_t i = 0; i < label.size(); ++i)
          measured_ += std::abs(finding["values"][i]["value"].get<double>() - label[i]["value"].get<double>()) /
                       static_cast<double>(label.size());
        break;
      case LabelKind::tokens:  // images have none
        break;
    }
  }

  std::string summary() const {
    std::string text = fmt::format("{} image{} in {:.1f} s", count_, count_ == 1 ? "" : "s", now_seconds() - begun_);
    if (labelled_ > 0)
      text +=
          fmt::format(", {}: {}", emphasized(stderr, Emphasis::headline, measured()),
                      labels_ == LabelKind::values ? fmt::format("{} with known values", labelled_)
                                                   : fmt::format("{} of {} with a known class", measured_, labelled_));
    return text;
  }

  std::string measured() const { return to_string(step_measure(labels_), measured_ / static_cast<double>(labelled_)); }

  const bool root_;
  const LabelKind labels_;  // this and the next are the network's
  const std::set<std::string> classes_;
  const std::size_t images_;  // to be predicted
  const double begun_;
  Meter meter_;
  std::int64_t labelled_ = 0;  // images with a known label, and what step_measure() measures for them, summed
  double measured_ = 0;
  std::optional<AtomicFile> file_;
  std::uint64_t written_ = 0;
  std::size_t count_ = 0;
  std::int64_t bad_ = 0;
};

class Predictor {
 public:
  // `batch`: images per forward pass.
  Predictor(Device& device, const TrainedNetwork& network, std::size_t batch, std::size_t top, Activity& activity)
      : network_(network),
        model_(device, network.graph, Mode::inference, batch, {}, [&activity] { activity.tick(); }),
        top_(top),
        activity_(activity) {
    restore_parameters(network.file, model_, network.averaged);
  }

  // Predicts a single rank's share of a batch.
  Findings findings(const Source& source, const Batch& batch, const Range& share) {
    const Samples& samples = *source.samples;
    Findings found;
    for (const BadSample& bad : batch.bad)
      found[bad.sample] = {{"image", samples.place(bad.sample)}, {"error", bad.reason}};
    std::vector<std::size_t> good;
    for (std::size_t sample = share.begin; sample < share.end; ++sample)
      if (!found.contains(sample)) good.push_back(sample);
    infer(model_, batch, source.input, activity_, [&](const Network& network, const Range& piece) {
      const std::vector<float> logits = read_logits(model_, network);
      const std::size_t classes = logits.size() / piece.size();
      for (std::size_t i = piece.begin; i < piece.end; ++i)
        found[good[i]] = finding(samples, good[i], batch.labels_of({i, i + 1}),
                                 std::span(logits).subspan((i - piece.begin) * classes, classes));
    });
    return found;
  }

 private:
  nlohmann::json finding(const Samples& samples, std::size_t sample, const Labels& label,
                         std::span<const float> logits) const {
    const std::string name = samples.place(sample);
    if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
      fail("{}: the output of {} is not finite: its training diverged", name, network_.file.path().string());
    nlohmann::json found = prediction(logits, network_.checkpoint(), top_);
    found["image"] = name;
    if (knows_label(samples.info())) found["label"] = label_of(samples.info(), label);
    return found;
  }

  // Labels with several numbers are only comparable if the numbers mean the same.
  bool knows_label(const DatasetInfo& data) const {
    return data.labels == LabelKind::one_class ? !data.classes.empty()
                                               : data.classes == network_.checkpoint().data.classes;
  }

  const TrainedNetwork& network_;
  Model model_;
  const std::size_t top_;
  Activity& activity_;
};

void predict(const World& world, const Source& source, std::size_t global_batch, Predictor& predictor, Report& report,
             Activity& activity) {
  Loader loader(
      *source.samples, source.input,
      {.global_batch = global_batch, .rank = world.rank(), .ranks = world.size(), .start = {}, .end_epoch = 1});
  for (bool last = false; !last;) {
    activity.enter(Activity::Phase::input);
    const Batch& batch = loader.next();
    last = batch.step.last_of_epoch;
    const Range share = batch.step.share(world.rank(), world.size());
    // Shares are in the ranks' order.
    activity.enter(Activity::Phase::forward);
    const std::string own = lines_of(predictor.findings(source, batch, share));
    activity.enter(Activity::Phase::meeting);
    const std::vector<std::string> lines = world.gather_texts(own);
    for (const std::string& of_rank : lines) report.add(of_rank);
  }
}

std::string hash_names(const Samples& images) {
  Hash hash;
  for (std::size_t i = 0; i < images.info().size; ++i) hash.add(std::span<const char>(images.place(i)));
  return hash.text();
}

void check_consistent(const World& world, const PredictOptions& options, const CheckpointHeader& checkpoint,
                      std::span<const Samples* const> images) {
  Agreement agreement(world);
  agreement.add("--weights", options.weights);
  agreement.add("--batch", options.batch);
  agreement.add("--top", options.top);
  agreement.add("--data-changed", options.data_changed);
  agreement.add("the checkpoint", description(checkpoint));
  agreement.add("the number of sources of images", images.size());
  for (const Samples* some : images) {
    agreement.add("the number of images", some->info().size);
    agreement.add("a hash of the images' names", hash_names(*some));
  }
  agreement.check();
}

}  // namespace

int predict(const World& world, const PredictOptions& options, Activity& activity) {
  activity.enter(Activity::Phase::comparing);
  check_same_command(world, "predict");
  activity.enter(Activity::Phase::opening);
  const auto device = open_device(world, options.device);
  const TrainedNetwork network =
      read_trained_network(options.checkpoint, options.weights, decoding_threads(world, *device));
  if (network.graph.reads_tokens())
    fail("{}: {} was trained on text: predict is for images; see annulus {}", network.file.path().string(),
         network.checkpoint().model, network.graph.predicts_tokens() ? "generate" : "eval");
  if (world.root())
    for (const std::string& line : network.damaged) fmt::print(stderr, "{}\n", printable(line));
  const std::vector<Source> sources = open_sources(network, options);
  activity.enter(Activity::Phase::comparing);
  check_consistent(world, options, network.checkpoint(), samples_of(sources));
  // A batch has at most as many images as there are.
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::size_t> sizes = sizes_of(sources);
  const std::size_t batch = std::min(options.batch, (std::ranges::max(sizes) + ranks - 1) / ranks);
  activity.enter(Activity::Phase::planning);
  Predictor predictor(*device, network, batch, options.top, activity);
  Report report(world, options.jsonl, network.checkpoint().data, std::reduce(sizes.begin(), sizes.end()));
  for (const Source& source : sources) predict(world, source, batch * ranks, predictor, report, activity);
  activity.enter(Activity::Phase::ending);
  report.finish();
  std::array bad{report.bad()};
  world.sum(bad);
  return bad.front() > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace annulus
