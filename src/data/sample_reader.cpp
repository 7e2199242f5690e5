#include "src/data/sample_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/clock.h"
#include "src/data/image_codec.h"
#include "src/data/mask_tokens.h"
#include "src/data/mix_images.h"
#include "src/data/rand_augment.h"

namespace annulus {

namespace {

constexpr std::uint64_t kMixing = 1;  // separates mixing's random numbers from the other augmentations'

std::vector<std::uint8_t> mean_colour(const DatasetInfo& info) {
  std::vector<std::uint8_t> colour;
  for (const float mean : info.mean)
    colour.push_back(static_cast<std::uint8_t>(std::clamp(std::lround(255 * mean), 0l, 255l)));
  return colour;
}

}  // namespace

SampleReader::SampleReader(const Samples& dataset, const InputPlan& plan)
    : dataset_(dataset), plan_(plan), mean_colour_(mean_colour(dataset.info())) {}

ReadTimes& ReadTimes::operator+=(const ReadTimes& other) {
  reading += other.reading;
  decoding += other.decoding;
  resizing += other.resizing;
  augmenting += other.augmenting;
  samples += other.samples;
  bytes += other.bytes;
  by_device += other.by_device;
  return *this;
}

ReadTimes ReadTimes::operator-(const ReadTimes& other) const {
  return {reading - other.reading, decoding - other.decoding, resizing - other.resizing,  augmenting - other.augmenting,
          samples - other.samples, bytes - other.bytes,       by_device - other.by_device};
}

void SampleReader::read(const SampleRows& rows, const OnBad& on_bad) {
  last_ = now_seconds();
  const DatasetInfo& info = dataset_.info();
  if (!info.is_text() && !plan_.resident && plan_.takes_as_stored({info.height, info.width}) && copy(rows)) return;
  if (plan_.make_decoder && info.encoded()) decode_ahead(rows);
  for (std::size_t row = 0; row < rows.samples.size(); ++row)
    for (std::size_t tried = 0;; ++tried) try {
        read_row(rows, row);
        break;
      } catch (const Error& error) {
        if (!on_bad(row, tried, error)) break;
      }
}

// Returns false if any sample is bad, or samples can only be read separately.
bool SampleReader::copy(const SampleRows& rows) {
  const bool copied = dataset_.copy(rows.samples, rows.pixels, rows.labels, rows.targets);
  add_time(times_.reading);
  if (!copied) return false;
  for (std::size_t row = 0; row < rows.samples.size(); ++row) {
    Draws draws(rows.keys[row]);
    augment(draws, plan_.image, rows, row);
  }
  add_time(times_.augmenting);
  times_.samples += rows.samples.size();
  times_.bytes += rows.pixels.size();
  return true;
}

void SampleReader::read_row(const SampleRows& rows, std::size_t row) {
  last_ = now_seconds();
  const DatasetInfo& info = dataset_.info();
  const std::size_t sample = rows.samples[row];
  const auto pixels = image_of(rows, row);
  Draws draws(rows.keys[row]);
  rows.labels[row] = dataset_.label(sample);
  if (info.targets() > 0) dataset_.read_targets(sample, rows.targets.subspan(row * info.targets(), info.targets()));
  if (info.is_text()) {
    read_window(sample, draws, pixels);
  } else if (plan_.resident) {
    const ShownImage image = shown(draws, {info.height, info.width}, rows, row);
    std::memcpy(pixels.data(), &image, sizeof image);
  } else {
    const ImageSize stored = info.encoded() ? read_encoded(sample, draws, pixels) : read_decoded(sample, draws, pixels);
    augment(draws, stored, rows, row);
  }
  add_time(times_.augmenting);
  ++times_.samples;
}

void SampleReader::mix_neighbours(std::span<const std::uint64_t> keys, std::span<std::uint8_t> pixels,
                                  std::span<const std::int32_t> labels, std::span<MixedLabel> mixed) {
  last_ = now_seconds();
  const std::size_t bytes = plan_.image_bytes();
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    Draws draws(mix(keys[i], kMixing));
    const std::int32_t share = mix_images(draws, plan_.augmentation.mixing, pixels.subspan(i * bytes, bytes),
                                          pixels.subspan((i + 1) * bytes, bytes), plan_.image, plan_.channels);
    mixed[i] = mixed_label(labels[i], labels[i + 1], share);
  }
  add_time(times_.augmenting);
}

// Decodes the samples that plan.make_decoder's decoder can.
void SampleReader::decode_ahead(const SampleRows& rows) {
  if (!decoder_) decoder_ = plan_.make_decoder();
  jobs_.clear();
  ahead_.reserve(rows.samples.size());  // so that jobs_ can refer to them
  for (std::size_t row = 0; row < rows.samples.size(); ++row) try {
      prepare(rows.samples[row], rows.keys[row]);
    } catch (const Error&) {  // read_row() reports it
    }
  decoder_->decode(jobs_);
  times_.by_device += static_cast<std::uint64_t>(std::ranges::count(jobs_, true, &JpegJob::decoded));
  add_time(times_.decoding);
}

void SampleReader::prepare(std::size_t sample, std::uint64_t key) {
  last_ = now_seconds();
  if (ahead_.size() == jobs_.size()) ahead_.emplace_back();
  Decoded& next = ahead_[jobs_.size()];
  dataset_.read_encoded(sample, next.file);
  add_time(times_.reading);
  const ImageSize size = image_size(next.file);
  Draws draws(key);
  if (const auto rows = baseline_rows(next.file, plan_.channels, crop(draws, size), plan_.image)) {
    next.sample = sample;
    next.size = size;
    next.first_row = rows->begin;
    next.rows.reshape({rows->size(), size.width}, plan_.channels);
    jobs_.push_back({next.file, size.height, size.width, rows->begin, next.rows.pixels});
  }
  add_time(times_.decoding);
}

const SampleReader::Decoded* SampleReader::decoded(std::size_t sample) const {
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    if (jobs_[i].decoded && ahead_[i].sample == sample) return &ahead_[i];
  return nullptr;
}

ImageSize SampleReader::read_encoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels) {
  if (const Decoded* ahead = jobs_.empty() ? nullptr : decoded(sample)) {
    times_.bytes += ahead->file.size();
    Window window = crop(draws, ahead->size);
    window.top -= static_cast<double>(ahead->first_row);
    resizer_.resize(ahead->rows, window, plan_.image, pixels);
    add_time(times_.resizing);
    return ahead->size;
  }
  dataset_.read_encoded(sample, bytes_);
  times_.bytes += bytes_.size();
  add_time(times_.reading);
  ImageSize stored;
  Window window;
  try {
    stored = image_size(bytes_);
    window = decode_crop(bytes_, plan_.channels, crop(draws, stored), plan_.image, image_);
  } catch (const Error& error) {
    fail("{}: {}", dataset_.place(sample), error.what());
  }
  add_time(times_.decoding);
  resizer_.resize(image_, window, plan_.image, pixels);
  add_time(times_.resizing);
  return stored;
}

ImageSize SampleReader::read_decoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels) {
  const DatasetInfo& info = dataset_.info();
  const ImageSize stored{info.height, info.width};
  const bool as_it_is = plan_.takes_as_stored(stored);
  if (!as_it_is) image_.reshape(stored, info.channels);
  dataset_.read_image(sample, as_it_is ? pixels : std::span(image_.pixels));
  times_.bytes += info.image_bytes();
  add_time(times_.reading);
  if (as_it_is) return stored;
  resizer_.resize(image_, crop(draws, stored), plan_.image, pixels);
  add_time(times_.resizing);
  return stored;
}

void SampleReader::read_window(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels) {
  const DatasetInfo& info = dataset_.info();
  const auto stored = pixels.first(info.image_bytes());
  if (plan_.shift_windows)
    dataset_.read_shifted(sample, draws.below(static_cast<std::uint32_t>(plan_.window.length)), stored);
  else
    dataset_.read_image(sample, stored);
  times_.bytes += stored.size();
  add_time(times_.reading);
  if (plan_.window.prediction != Prediction::masked) return;
  const std::span window(reinterpret_cast<std::int32_t*>(pixels.data()), plan_.window.size());
  const auto repeated = static_cast<std::size_t>(window[plan_.window.length]);
  mask_tokens(draws, info.vocabulary, info.mask_token, window, repeated);
}

Window SampleReader::crop(Draws& draws, const ImageSize& image) const {
  switch (plan_.augmentation.crop) {
    case Crop::resized:
      return random_resized_crop(draws, image);
    case Crop::shifted:
      return shifted_crop(draws, image, plan_.image, plan_.margin_of(image));
    case Crop::centre:
      break;
  }
  return centre_crop(image, plan_.image, plan_.margin_of(image));
}

// Draws how the image is moved and mirrored.
ShownImage SampleReader::shown(Draws& draws, const ImageSize& stored, const SampleRows& rows, std::size_t row) const {
  constexpr std::size_t kShift = 4;
  const Augmentation& augmentation = plan_.augmentation;
  ShownImage image{.number = static_cast<std::uint32_t>(rows.samples[row])};
  const auto move = [&](std::size_t most) {
    const Shift shift = draw_shift(draws, most);
    image.down = static_cast<std::int16_t>(shift.down);
    image.right = static_cast<std::int16_t>(shift.right);
  };
  // Without a margin there is no room to shift the crop.
  if (augmentation.crop == Crop::shifted && plan_.margin_of(stored) == 1) move(kShift);
  if (augmentation.shift > 0) {
    move(augmentation.shift);
    image.reflected = 1;
  }
  const auto flips = [&] {
    return augmentation.alternate ? flips_in(rows.epoch, rows.seed, rows.samples[row]) : draws.below(2) == 1;
  };
  image.mirrored = augmentation.flip && flips() ? 1 : 0;
  return image;
}

void SampleReader::show(const ShownImage& image, std::span<std::uint8_t> pixels) {
  if (image.reflected != 0)
    shift_with_reflection(image.down, image.right, pixels, plan_.image, plan_.channels, scratch_);
  else if (image.down != 0 || image.right != 0)
    shift_with_black({image.down, image.right}, pixels, plan_.image, plan_.channels);
  if (image.mirrored != 0) flip_left_to_right(pixels, plan_.image, plan_.channels);
}

void SampleReader::augment(Draws& draws, const ImageSize& stored, const SampleRows& rows, std::size_t row) {
  const auto pixels = image_of(rows, row);
  const Augmentation& augmentation = plan_.augmentation;
  show(shown(draws, stored, rows, row), pixels);
  if (augmentation.changes > 0)
    rand_augment(draws, augmentation.changes, static_cast<int>(augmentation.magnitude), pixels, plan_.image,
                 plan_.channels, scratch_);
  if (augmentation.jitter) jitter_colours(draws, pixels, plan_.channels);
  if (augmentation.erase > 0 && draws.between(0, 1) < augmentation.erase)
    erase_randomly(draws, pixels, plan_.image, mean_colour_);
}

void SampleReader::add_time(double& part) {
  const double now = now_seconds();
  part += now - last_;
  last_ = now;
}

}  // namespace annulus
