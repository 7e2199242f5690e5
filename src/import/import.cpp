#include "src/import/import.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "src/data/dataset.h"
#include "src/data/open_samples.h"
#include "src/import/assembly.h"
#include "src/import/class_names.h"
#include "src/import/documents.h"
#include "src/import/hold_out.h"
#include "src/import/run_jobs.h"
#include "src/io/atomic_file.h"
#include "src/io/bytes.h"
#include "src/io/folder_claim.h"
#include "src/io/output_file.h"
#include "src/io/printable.h"
#include "src/job/signals.h"

namespace annulus {
namespace {

constexpr std::int64_t kMostClasses = 1 << 20;  // without class names: a larger label is an error

std::filesystem::path parts_of(const ImportOptions& options) {
  return options.output.string() + ".parts";
}

std::filesystem::path skipped_file(const ImportOptions& options) {
  return options.output.string() + ".skipped.txt";
}

std::vector<std::filesystem::path> files_of(const ImportOptions& options) {
  if (options.shards == 1) return {options.output};
  std::vector<std::filesystem::path> files;
  for (std::size_t shard = 0; shard < options.shards; ++shard) {
    files.push_back(options.output.parent_path() / fmt::format("{}-{:05}-of-{:05}{}", options.output.stem().string(),
                                                               shard, options.shards,
                                                               options.output.extension().string()));
  }
  return files;
}

// Throws Error if there are shards from an import with another number of shards: a pattern would match both.
void expect_no_other_shards(const ImportOptions& options) {
  if (options.shards == 1) return;
  const std::vector<std::filesystem::path> files = files_of(options);
  const std::string stem = options.output.stem().string(), ending = options.output.extension().string();
  const std::filesystem::path folder = files.front().has_parent_path() ? files.front().parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.starts_with(stem + "-") && name.ends_with(ending) &&
                          fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]",
                                  name.substr(0, name.size() - ending.size()).c_str(), 0) == 0;
    if (!is_shard || std::ranges::find(files, files.front().parent_path() / name) != files.end()) continue;
    fail(
        "{}: a shard of another import, which {}-*{} would match like the {} new ones; delete it, or choose another "
        "name",
        (files.front().parent_path() / name).string(), stem, ending, options.shards);
  }
}

std::vector<std::size_t> unfinished(const ImportJob& job, const std::filesystem::path& parts) {
  std::vector<std::size_t> numbers;
  const std::vector<PieceNumber> pieces = pieces_of(job.plan);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!part_exists(part_of(parts, job.plan.splits[pieces[i].split], pieces[i].piece))) numbers.push_back(i);
  }
  return numbers;
}

std::size_t finished_pieces(const ImportJob& job, const std::filesystem::path& parts) {
  return pieces_of(job.plan).size() - unfinished(job, parts).size();
}

void expect_replaceable_files(const ImportOptions& options) {
  std::vector<Output> outputs{{skipped_file(options), FileKind::skipped_samples}};
  for (const std::filesystem::path& file : files_of(options)) outputs.push_back({file, FileKind::data});
  std::vector<std::filesystem::path> inputs{options.source};
  inputs.insert(inputs.end(), options.more_sources.begin(), options.more_sources.end());
  for (const Output& output : outputs) expect_replaceable(output, inputs, options.overwrite);
}

// "7000 images"; empty if the files are not one data set.
std::string content_of(const std::vector<std::filesystem::path>& files) try {
  std::size_t count = 0;
  std::string_view unit = "images";
  for (const std::string split : {"train", "validation", "test"}) {
    if (!has_split(files, split)) continue;
    const std::unique_ptr<Samples> samples = open_samples(files, split, 0);
    const DatasetInfo& info = samples->info();
    count += info.predicts_tokens() ? info.tokens : info.size;
    if (info.is_text()) unit = info.predicts_tokens() ? "tokens" : "texts";
  }
  return fmt::format("{} {}", count, unit);
} catch (const Error&) {
  return "";
}

// Returns a line for the user if the import will replace files, which may have taken hours to make; else empty.
std::string replacement(const ImportOptions& options) {
  std::vector<std::filesystem::path> files = files_of(options);
  std::erase_if(files, [](const auto& file) { return !exists(file) || is_empty(file); });
  if (files.empty()) return "";
  const std::string content = content_of(files);
  return fmt::format("replaces {}{}{}", files.front().string(),
                     files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "",
                     content.empty() ? "" : fmt::format(" ({})", content));
}

// Runs on rank 0 before an import is started or continued.
void prepare(const ImportOptions& options, const FolderClaim& claim, const Log& log) {
  const std::filesystem::path parts = parts_of(options);
  try {
    expect_no_other_shards(options);
    const ImportJob job = make_job(options, parts);
    if (options.format == "auto") log(fmt::format("{}: read with --from {}", options.source.string(), job.format));
    if (!job.plan.remark.empty()) log(job.plan.remark);
    const std::string difference = difference_to_parts(job, parts);
    const bool has_changed = difference == kDifferentSource;
    if (has_changed || (!difference.empty() && finished_pieces(job, parts) == 0)) {
      log(fmt::format("{}: {}: starting over", parts.string(),
                      has_changed ? "the source has changed since" : "no finished pieces"));
      claim.clear();
      return prepare(options, claim, log);
    }
    if (!difference.empty()) {
      fail("{}: has an unfinished import with another {}; continue that import, or delete the folder", parts.string(),
           difference);
    }
    write_job(job, parts);
  } catch (const std::exception&) {
    if (claim.is_new()) claim.remove();
    throw;
  }
}

std::span<const std::uint8_t> convert(const SourceSample& sample, std::size_t known_classes,
                                      ImageConverter& converter) {
  if (!sample.problem.empty()) fail("{}", sample.problem);
  const auto classes = static_cast<std::int64_t>(known_classes);
  if (classes > 0 && (sample.label < 0 || sample.label >= classes)) {
    fail("has label {}, which none of the {} classes has", sample.label, classes);
  }
  if (sample.label < 0 || sample.label >= kMostClasses) {
    fail("has label {}; labels must be at least 0 and below {}", sample.label, kMostClasses);
  }
  return converter.convert(sample.bytes);
}

void import_piece(const ImportJob& job, const std::filesystem::path& parts, const PieceNumber& number,
                  const Report& report) {
  const SourceSplit& split = job.plan.splits[number.split];
  PartWriter part(part_of(parts, split, number.piece));
  ImageConverter converter(job.storage);
  bool wanted = true;
  source_format(job.format).read(job.folders(parts), job.plan, split, number.piece, [&](const SourceSample& sample) {
    std::span<const std::uint8_t> image;
    std::string problem;
    try {
      image = convert(sample, job.classes().size(), converter);
    } catch (const Error& error) {
      problem = printable(error.what());
    }
    const std::string name = printable(sample.name);
    if (problem.empty())
      part.add(sample.label, image);
    else if (job.skips_bad_samples)
      part.skip(name, problem);
    else
      fail("{}: {}", name, problem);
    wanted = report(1, sample.bytes.size());
    return wanted;
  });
  if (wanted) part.finish(converter.statistics());
}

// Processes, on all ranks, every piece that has no part. Returns false if a signal requested a stop.
bool import_pieces(const World& world, const ImportJob& job, const std::filesystem::path& parts, const Log& log) {
  const std::vector<PieceNumber> pieces = pieces_of(job.plan);
  std::vector<std::size_t> left;
  if (world.root()) left = unfinished(job, parts);
  if (world.root() && left.size() < pieces.size())
    log(fmt::format("{}: {} of {} pieces are finished; continuing", parts.string(), pieces.size() - left.size(),
                    pieces.size()));
  std::optional<DocumentConverter> documents;
  if (job.plan.is_text) documents.emplace(job);
  return run_jobs(
      world, "reading", job.plan.samples(), left, pieces.size(), [&](std::size_t piece, const Report& report) {
        documents ? documents->convert(parts, pieces[piece], report) : import_piece(job, parts, pieces[piece], report);
      });
}

void list_skipped(const ImportOptions& options, const std::vector<SkippedSample>& skipped) {
  if (skipped.empty()) {
    std::filesystem::remove(skipped_file(options));
    return;
  }
  std::string text;
  for (const SkippedSample& sample : skipped) text += fmt::format("{}\t{}\n", sample.name, sample.reason);
  write_atomically(skipped_file(options), std::as_bytes(std::span(text)));
}

void expect_samples(const ImportOptions& options, const ImportJob& job, const Collection& collection) {
  for (const Collection::Split& split : collection.splits) {
    if (!split.sizes.empty()) continue;
    if (split.skipped == 0) fail("{}: has no {} {}", options.source.string(), split.name, job.plan.samples());
    fail("{}: none of the {} {} is usable ({} skipped: see {})", options.source.string(), split.name,
         job.plan.samples(), split.skipped, skipped_file(options).string());
  }
}

// Returns the part with a split's only document.
std::filesystem::path only_part(const ImportJob& job, const std::filesystem::path& parts,
                                const Collection::Split& split) {
  const auto piece = std::ranges::find(split.first_samples, 1) - split.first_samples.begin() - 1;
  return part_of(parts, job.plan.splits.front(), static_cast<std::size_t>(piece));
}

// Marks the training samples to hold out for validation.
void hold_out_samples(const ImportOptions& options, const ImportJob& job, const std::filesystem::path& parts,
                      Collection& collection) {
  Collection::Split& train = collection.splits.front();
  const bool is_one_document = job.plan.is_text && train.sizes.size() == 1;
  if (options.hold_out > 0 && is_one_document)
    hold_out_end(only_part(job, parts, train), Tokenizer::parse(job.tokenizer), options.hold_out, train);
  else if (options.hold_out > 0)
    train.held_out = hold_out(train.labels, options.hold_out);
  if (options.hold_out > 0 && train.held_out_samples() == 0 && job.plan.is_text)
    fail("--hold-out {}: there are only {} documents; give a larger share", options.hold_out, train.sizes.size());
  if (options.hold_out > 0 && train.held_out_samples() == 0)
    fail("--hold-out {}: no class has enough images for it; give a larger share", options.hold_out);
  const std::size_t samples = train.sizes.size() - train.held_out_samples();
  if (options.shards > samples)
    fail("--shards {}: there are only {} training {}", options.shards, samples, job.plan.samples());
}

DataFileHeader header_of(const ImportOptions& options, const ImportJob& job, const Collection& collection) {
  DataFileHeader header{job.classes(), options.mean, options.stddev, options.chunk, job.plan.is_text};
  if (job.plan.is_text) {
    const Tokenizer tokenizer = Tokenizer::parse(job.tokenizer);
    header.text = {tokenizer.name(), job.tokenizer, tokenizer.vocabulary(), token_bytes(tokenizer.vocabulary())};
    return header;
  }
  if (header.classes.empty()) {
    for (std::int32_t label = 0; label <= collection.largest_label(); ++label)
      header.classes.push_back(std::to_string(label));
  }
  if (options.mean.empty()) header.mean = mean_of(collection.pixels, job.storage.channels);
  if (options.stddev.empty()) header.stddev = stddev_of(collection.pixels, job.storage.channels);
  return header;
}

// "224", or "20-500".
std::string describe_range(std::size_t smallest, std::size_t largest) {
  return smallest == largest ? std::to_string(smallest) : fmt::format("{}-{}", smallest, largest);
}

std::string describe(const ImportJob& job, const Collection::Split& split, std::size_t classes) {
  const auto [smallest, largest] = split.image_sizes;
  std::string text =
      fmt::format("{} images of {}x{}, {} classes", split.sizes.size(), describe_range(smallest.height, largest.height),
                  describe_range(smallest.width, largest.width), classes);
  if (job.storage.encoded) text += fmt::format(", encoded, {}", format_bytes(split.bytes()));
  if (split.skipped > 0) text += fmt::format(", {} skipped", split.skipped);
  if (const std::size_t images = split.held_out_samples(); images > 0)
    text += fmt::format("; {} of them held out for validation", images);
  return text;
}

std::size_t classes_without_images(const Collection& collection, std::size_t classes) {
  std::vector<bool> seen(classes);
  for (const std::int32_t label : collection.splits.front().labels) seen[static_cast<std::size_t>(label)] = true;
  return static_cast<std::size_t>(std::ranges::count(seen, false));
}

std::string describe(const TextHeader& header, const Collection::Split& split) {
  const std::uint64_t bytes = std::accumulate(split.text_bytes.begin(), split.text_bytes.end(), std::uint64_t{0});
  const std::uint64_t tokens = split.bytes() / header.token_bytes;
  const std::size_t documents = split.is_cut ? 1 : split.sizes.size();
  std::string text =
      fmt::format("{} document{} of {}, {} tokens, {:.2f} bytes per token", documents, documents == 1 ? "" : "s",
                  format_bytes(bytes), tokens, static_cast<double>(bytes) / static_cast<double>(tokens));
  if (split.skipped > 0) text += fmt::format(", {} skipped", split.skipped);
  if (split.is_cut)
    text += fmt::format("; its last {} tokens held out for validation", split.sizes.back() / header.token_bytes);
  else if (const std::size_t held_out = split.held_out_samples(); held_out > 0)
    text += fmt::format("; {} of them held out for validation", held_out);
  if (split.invalid_bytes > 0)
    text += fmt::format("; {} bytes in {} of them are not UTF-8, and become tokens one by one", split.invalid_bytes,
                        split.invalid_documents);
  return text;
}

// "3 binary, 2 empty, 1 unreadable".
std::string reasons_of(const std::vector<SkippedSample>& skipped) {
  const auto count = [&](std::string_view reason) {
    return std::ranges::count(skipped, reason, &SkippedSample::reason);
  };
  const auto binary = count(kBinaryDocument), empty = count(kEmptyDocument);
  return fmt::format("{} binary, {} empty, {} unreadable", binary, empty, std::ssize(skipped) - binary - empty);
}

std::string summary_of(const ImportOptions& options, const ImportJob& job, const Collection& collection,
                       const DataFileHeader& header) {
  const std::size_t classes = header.classes.size();
  const bool is_text = job.plan.is_text;
  std::vector<std::string> lines;
  for (const Collection::Split& split : collection.splits)
    lines.push_back(fmt::format("{}: {}: {}", options.output.string(), split.name,
                                is_text ? describe(header.text, split) : describe(job, split, classes)));
  if (is_text)
    lines.push_back(
        fmt::format("{}: tokenizer {}, {} tokens", options.output.string(), header.text.name, header.text.vocabulary));
  if (options.shards > 1)
    lines.push_back(fmt::format("{}: in {} shards, {} and so on", options.output.string(), options.shards,
                                files_of(options).front().string()));
  if (collection.splits.size() == 1 && options.hold_out == 0)
    lines.push_back(
        fmt::format("{}: has no validation or test {}; --hold-out 0.1 keeps a tenth of the training {} for it",
                    options.output.string(), job.plan.samples(), job.plan.samples()));
  const std::size_t unused = is_text ? 0 : classes_without_images(collection, classes);
  if (unused > 0)
    lines.push_back(
        fmt::format("{}: {} of {} classes have no training image", options.output.string(), unused, classes));
  if (!collection.skipped.empty())
    lines.push_back(fmt::format("{}: lists the skipped samples with the reasons{}", skipped_file(options).string(),
                                is_text ? ": " + reasons_of(collection.skipped) : ""));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// Assembles the data files from the parts. Returns false if a signal requested a stop.
bool put_together(const World& world, const ImportOptions& options, const ImportJob& job,
                  const std::filesystem::path& parts, const Log& log) {
  Collection collection;
  DataFileHeader header;
  std::string summary;
  world.all_or_none([&] {
    if (!world.root()) return;
    collection = collect_parts(job, parts);
    list_skipped(options, collection.skipped);
    expect_samples(options, job, collection);
    if (job.classes().empty() && !job.plan.is_text) expect_sensible_labels(job, collection);
    hold_out_samples(options, job, parts, collection);
    header = header_of(options, job, collection);
    summary = summary_of(options, job, collection, header);
  });
  if (!assemble(world, job, parts, std::move(collection), header, files_of(options))) return false;
  if (world.root()) log(summary);
  return true;
}

// Keeps finished pieces, if any, for a rerun. `condition`: must be met before the rerun.
void keep_or_remove(const ImportJob& job, const std::filesystem::path& parts, const FolderClaim& claim,
                    const char* condition, std::string& message) {
  const std::size_t done = finished_pieces(job, parts);
  if (done == 0 && !has_class_names(job, parts)) {
    claim.remove();
    return;
  }
  const std::string kept =
      done == 0 ? "the class names that were found" : fmt::format("{} of {} pieces", done, pieces_of(job.plan).size());
  message += fmt::format("; {} are kept in {}: {}run the same command to continue", kept, parts.string(), condition);
}

}  // namespace

int import_data(const World& world, const ImportOptions& options, const Log& log) {
  const std::filesystem::path parts = parts_of(options);
  ImportJob job;
  std::optional<FolderClaim> claim;  // rank 0's
  world.all_or_none([&] {
    if (!world.root()) return;
    expect_replaceable_files(options);
    claim.emplace(parts, false, "choose another name for the data file", "delete it");
    prepare(options, *claim, log);
    if (const std::string line = replacement(options); !line.empty()) log(line);
  });
  world.all_or_none([&] { job = read_job(parts); });
  watch_for_stop_signals();
  std::string outcome = "stopped";
  try {
    if (find_classes(world, job, parts) && import_pieces(world, job, parts, log) &&
        put_together(world, options, job, parts, log)) {
      if (world.root()) claim->remove();
      return 0;
    }
  } catch (const Error& error) {
    outcome = error.what();
    if (world.root()) keep_or_remove(job, parts, *claim, "fix the problem and ", outcome);
    throw Error(outcome);
  }
  if (!world.root()) return kStoppedExitCode;
  keep_or_remove(job, parts, *claim, "", outcome);
  log(outcome);
  return kStoppedExitCode;
}

}  // namespace annulus
