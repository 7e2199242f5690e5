#include "src/import/import_job.h"

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "src/import/documents.h"
#include "src/io/atomic_file.h"
#include "src/io/checked_product.h"
#include "src/io/json.h"

namespace annulus {
namespace {

constexpr const char* kJobFile = "job.json";
// Sorts after kDifferentSource, because a tokenizer may be trained on the source.
constexpr const char* kDifferentTokenizer = "tokenizer";
constexpr int kVersion = 8;  // the parts' format

// Returns the compared values, by the name that a difference has for the user.
nlohmann::json to_json(const ImportJob& job) {
  nlohmann::json splits = nlohmann::json::array();
  for (const SourceSplit& split : job.plan.splits) splits.push_back({{"name", split.name}, {"pieces", split.pieces}});
  nlohmann::json sources{job.source.string()};
  for (const std::filesystem::path& source : job.more_sources) sources.push_back(source.string());
  const auto size = [](const ImageSize& of) { return nlohmann::json{of.height, of.width}; };
  return {{"the program's version", kVersion},
          {"--from", job.format},
          {"SOURCE", sources},
          {"--labels", job.labels.string()},
          {"--label-key", job.label_key},
          {"--store", job.storage.encoded ? "encoded" : "pixels"},
          {"--size", job.storage.size ? size(*job.storage.size) : nlohmann::json()},
          {"--channels", job.storage.channels},
          {"--on-bad-sample", job.skips_bad_samples ? "skip" : "fail"},
          {"--classes", job.class_names},
          {kDifferentSource,
           {{"splits", splits},
            {"classes", job.plan.classes},
            {"classes in pieces", job.plan.classes_in_pieces},
            {"variant", job.plan.variant},
            {"shuffle", job.plan.shuffle},
            {"fingerprint", job.plan.fingerprint},
            {"text", job.plan.is_text}}},
          {kDifferentTokenizer, job.tokenizer}};
}

ImportJob job_from(const nlohmann::json& from) {
  const auto size = [](const nlohmann::json& of) { return ImageSize{of.at(0), of.at(1)}; };
  const nlohmann::json& source = from.at(kDifferentSource);
  ImportJob job;
  job.format = from.at("--from");
  const auto sources = from.at("SOURCE").get<std::vector<std::string>>();
  job.source = sources.at(0);
  job.more_sources.assign(sources.begin() + 1, sources.end());
  job.labels = from.at("--labels").get<std::string>();
  job.label_key = from.at("--label-key");
  job.storage.encoded = from.at("--store") == "encoded";
  if (!from.at("--size").is_null()) job.storage.size = size(from.at("--size"));
  job.storage.channels = from.at("--channels");
  job.skips_bad_samples = from.at("--on-bad-sample") == "skip";
  job.class_names = from.at("--classes");
  job.plan.classes = source.at("classes");
  job.plan.classes_in_pieces = source.at("classes in pieces");
  for (const nlohmann::json& split : source.at("splits"))
    job.plan.splits.push_back({split.at("name"), split.at("pieces")});
  job.plan.variant = source.at("variant");
  job.plan.shuffle = source.at("shuffle");
  job.plan.fingerprint = source.at("fingerprint");
  job.plan.is_text = source.at("text");
  job.tokenizer = from.at(kDifferentTokenizer);
  return job;
}

nlohmann::json read_json(const std::filesystem::path& parts) {
  std::ifstream stream(parts / kJobFile);
  if (!stream) {
    fail("{}: cannot open; the data file's folder must be the same for all ranks, on all hosts",
         (parts / kJobFile).string());
  }
  return parse_json(stream);
}

[[noreturn]] void fail_as_damaged(const std::filesystem::path& parts) {
  fail("{}: damaged; delete the folder and import again", (parts / kJobFile).string());
}

Storage storage_for(const ImportOptions& options) {
  const bool encoded = options.store != "pixels";
  if (encoded && options.size) fail("--size: encoded images keep their sizes; add --store pixels");
  if (!encoded && !options.size) fail("--store pixels: requires a size, such as --size 256x256");
  constexpr std::size_t channels = 3;
  if (!encoded && checked_product(std::array{options.size->height, options.size->width, channels}).value_or(SIZE_MAX) >
                      kMostImageBytes)
    fail("--size {}x{}: images of more than {} bytes are not supported", options.size->height, options.size->width,
         kMostImageBytes);
  return {encoded, options.size, options.channels == 0 ? channels : options.channels};
}

void expect_per_channel(const char* option, const std::vector<float>& values, std::size_t channels) {
  if (!values.empty() && values.size() != channels)
    fail("{}: {} values for {} channels", option, values.size(), channels);
  for (const float value : values) {
    if (!std::isfinite(value)) fail("{}: {} is not a finite number", option, value);
  }
}

void expect_sources(const ImportOptions& options, const SourceFormat& format) {
  const bool is_text = format.name == kTextSource.name;
  if (!options.more_sources.empty() && !is_text)
    fail("{}: one SOURCE is expected; only --from text takes several", options.more_sources.front().string());
  if (!options.tokenizer.empty() && !is_text) fail("--tokenizer: is for --from text");
  if (!options.labels.empty() && format.name != kFolderSource.name) fail("--labels: is for --from folder");
  if (!options.label_key.empty() && format.name != kTarSource.name) fail("--label-key: is for --from tar");
  std::vector<std::filesystem::path> sources{options.source};
  sources.insert(sources.end(), options.more_sources.begin(), options.more_sources.end());
  for (const std::filesystem::path& source : sources)
    if (!std::filesystem::exists(source)) fail("{}: no such file or folder", source.string());
  if (format.name == kFolderSource.name && !std::filesystem::is_directory(options.source))
    fail("{}: not a folder; --from folder reads a folder of images", options.source.string());
}

void expect_no_image_options(const ImportOptions& options) {
  const auto expect_default = [](const char* option, bool is_default) {
    if (!is_default) fail("{}: is for images, not for --from text; remove the option", option);
  };
  expect_default("--store", options.store == "encoded");
  expect_default("--size", !options.size);
  expect_default("--channels", options.channels == 0);
  expect_default("--mean", options.mean.empty());
  expect_default("--std", options.stddev.empty());
  expect_default("--classes", options.classes.empty());
  expect_default("--chunk", options.chunk == 0);
}

}  // namespace

std::vector<PieceNumber> pieces_of(const SourcePlan& plan) {
  std::vector<PieceNumber> pieces;
  for (std::size_t split = 0; split < plan.splits.size(); ++split) {
    for (std::size_t piece = 0; piece < plan.splits[split].pieces.size(); ++piece) pieces.push_back({split, piece});
  }
  return pieces;
}

std::filesystem::path part_of(const std::filesystem::path& parts, const SourceSplit& split, std::size_t piece) {
  return parts / fmt::format("{}-{:06}", split.name, piece);
}

void expect_names_to_fit(const ImportJob& job) {
  const std::size_t names = job.class_names.size(), classes = job.plan.classes.size();
  if (names > 0 && classes > 0 && names != classes) fail("--classes: {} names for {} classes", names, classes);
}

ImportJob make_job(const ImportOptions& options, const std::filesystem::path& parts) try {
  ImportJob job;
  job.format = options.format == "auto" ? recognized_format(options.source).name : options.format;
  job.source = options.source;
  job.more_sources = options.more_sources;
  job.labels = options.labels;
  job.label_key = options.label_key;
  job.skips_bad_samples = options.on_bad_sample == "skip";
  const SourceFormat& format = source_format(job.format);
  expect_sources(options, format);
  job.plan = format.plan(job.folders(parts));
  if (job.plan.is_text) {
    expect_no_image_options(options);
    job.tokenizer = make_tokenizer(options.tokenizer, job.folders(parts), job.plan).serialized();
    job.storage.encoded = true;
    return job;
  }
  job.class_names = options.classes;
  expect_names_to_fit(job);
  job.storage = storage_for(options);
  expect_per_channel("--mean", options.mean, job.storage.channels);
  expect_per_channel("--std", options.stddev, job.storage.channels);
  for (const float stddev : options.stddev) {
    if (stddev <= 0) fail("--std: {} is not above 0", stddev);
  }
  return job;
} catch (const std::filesystem::filesystem_error& error) {
  fail("{}: {}", error.path1().string(), error.code().message());
}

void fail_for_names(const ImportJob& job) {
  fail("{}: names of folders, archives and classes must be UTF-8; rename those that are not", job.source.string());
}

void write_job(const ImportJob& job, const std::filesystem::path& parts) try {
  const std::string text = to_json(job).dump(1);
  write_atomically(parts / kJobFile, std::as_bytes(std::span(text)));
} catch (const nlohmann::json::exception&) {
  fail_for_names(job);
}

ImportJob read_job(const std::filesystem::path& parts) try {
  return job_from(read_json(parts));
} catch (const nlohmann::json::exception&) {
  fail_as_damaged(parts);
}

std::string difference_to_parts(const ImportJob& job, const std::filesystem::path& parts) try {
  if (!std::filesystem::exists(parts / kJobFile)) return {};
  const nlohmann::json before = read_json(parts), now = to_json(job);
  for (const auto& [name, value] : now.items()) {
    if (!before.contains(name) || before[name] != value) return name;
  }
  return {};
} catch (const nlohmann::json::exception&) {
  fail_as_damaged(parts);
}

}  // namespace annulus
