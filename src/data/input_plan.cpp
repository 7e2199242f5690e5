#include "src/data/input_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "src/data/resize.h"

namespace annulus {
namespace {

constexpr std::size_t kUsualImage = 224;
constexpr double kUsualMargin = 256.0 / 224;

ImageSize image_size(const DataOptions& options, const DatasetInfo& info, const ImageSize& trained) {
  const bool known = trained != ImageSize{};
  const ImageSize stored{info.height, info.width};
  if (options.image > 0) return {options.image, options.image};
  if (info.encoded()) return known ? trained : ImageSize{kUsualImage, kUsualImage};
  if (known && trained != stored)
    fail(
        "the data's images are {}x{}, but the network was trained with {}x{}: choose the network's image size with "
        "--image",
        stored.height, stored.width, trained.height, trained.width);
  return stored;
}

// Encoded images, and decoded images stored larger than the network's input, have a margin.
double margin(const ImageSize& image, const DatasetInfo& info) {
  const bool larger = info.height > image.height && info.width > image.width;
  return info.encoded() || larger ? kUsualMargin : 1;
}

Augmentation augmentation(const DataOptions& options, const DatasetInfo& info, Purpose purpose) {
  if (purpose == Purpose::evaluation) return {};
  Augmentation augmentation =
      parse_augmentation(options.augment == "auto" ? info.encoded() ? "imagenet" : "none" : options.augment);
  augmentation.alternate = options.alternate;
  augmentation.shift = options.shift;
  augmentation.changes = options.rand_augment.at(0);
  augmentation.magnitude = options.rand_augment.at(1);
  augmentation.erase = options.erase;
  augmentation.mixing = {options.mixup, options.cutmix};
  if (augmentation.changes > 0 && info.channels != 1 && info.channels != 3)
    fail("--augment rand: cannot change images of {} channels, only of 1 or 3", info.channels);
  if (augmentation.alternate && !augmentation.flip)
    fail("--augment alternate: nothing is flipped; choose flip or another augmentation that flips");
  if (augmentation.shift > 0 && augmentation.crop != Crop::centre)
    fail("--augment shift: this augmentation crops at random; choose none or flip");
  return augmentation;
}

void expect_shiftable(const InputPlan& plan) {
  if (const std::size_t shift = plan.augmentation.shift; shift >= std::min(plan.image.height, plan.image.width))
    fail("--augment shift={}: images of {}x{} are too small to be shifted so far", shift, plan.image.height,
         plan.image.width);
}

std::vector<View> views(const DataOptions& options, const InputPlan& plan, const DatasetInfo& info) {
  std::vector<View> all = parse_views(options.views);
  if (all.size() > 1 && info.labels != LabelKind::one_class)
    fail("--views {}: requires one class for each image, but the labels are {}: remove the option", options.views,
         description(info.labels));
  if (all.back().shift != 0 && std::min(plan.image.height, plan.image.width) < 2)
    fail("--views {}: images of {}x{} are too small to be shifted", options.views, plan.image.height, plan.image.width);
  return all;
}

void expect_resizable(const InputPlan& plan, const DatasetInfo& info) {
  if (Resizer::takes(plan.channels)) return;
  if (plan.image != ImageSize{info.height, info.width})
    fail("--image {}: cannot resize images of {} channels, only of 1 or 3", plan.image.height, plan.channels);
  if (plan.augmentation.crop == Crop::resized)
    fail("--augment: cannot resize images of {} channels, only of 1 or 3; none, flip and crop-flip do not resize",
         plan.channels);
}

std::string to_string(const Augmentation& augmentation) {
  constexpr std::array<const char*, 3> kCrops{"centre crop", "shifted crop", "random resized crop"};
  std::string text = kCrops[static_cast<std::size_t>(augmentation.crop)];
  if (augmentation.flip) text += augmentation.alternate ? ", flips in every second epoch" : ", random flips";
  if (augmentation.shift > 0) text += fmt::format(", shifts by up to {} pixels with reflection", augmentation.shift);
  if (augmentation.changes > 0)
    text += fmt::format(", RandAugment of {} changes of magnitude {}", augmentation.changes, augmentation.magnitude);
  if (augmentation.jitter) text += ", colour jitter";
  if (augmentation.erase > 0) text += fmt::format(", {:.4g} % with a rectangle erased", 100 * augmentation.erase);
  if (augmentation.mixing.mixup > 0) text += ", mixup";
  if (augmentation.mixing.cutmix > 0) text += ", CutMix";
  return text;
}

std::string margin_text(const InputPlan& plan) {
  if (plan.margin == 1) return "";
  return fmt::format("; evaluated without a margin of 256/224 (images of {}x{}: whole)", plan.image.height,
                     plan.image.width);
}

// Throws Error if an option that only images have is set.
void expect_no_image_options(const DataOptions& options) {
  const auto expect_default = [](const char* option, bool is_default) {
    if (!is_default) fail("{}: is for images, and the data is text; remove the option", option);
  };
  expect_default("--image", options.image == 0);
  expect_default("--views", options.views == "one");
  const bool has_settings = options.rand_augment.at(0) > 0 || options.erase > 0 || options.mixup > 0 ||
                            options.cutmix > 0 || options.alternate || options.shift > 0;
  expect_default("--augment", (options.augment == "auto" || options.augment == "none") && !has_settings);
}

Shuffle shuffle(const DataOptions& options, Purpose purpose) {
  Shuffle order{Shuffle::Kind::none, options.shuffle_block, options.shuffle_window};
  if (purpose == Purpose::training)
    order.kind = options.shuffle == "block" ? Shuffle::Kind::block : Shuffle::Kind::global;
  return order;
}

}  // namespace

std::string name_of(const DataOptions& options) {
  return fmt::format("{}", fmt::join(options.files, " "));
}

std::string to_string(const InputPlan& plan) {
  constexpr std::array<const char*, 3> kOrders{"in order", "in random order", "in random order of blocks"};
  const std::string samples =
      plan.is_text()
          ? fmt::format("{} tokens: {}{}", plan.window.length, plan.shift_windows ? "shifted randomly" : "as stored",
                        plan.window.prediction == Prediction::masked
                            ? fmt::format(", {} of them masked", plan.window.targets())
                            : "")
          : fmt::format("{}x{}x{}: {}{}", plan.image.height, plan.image.width, plan.channels,
                        to_string(plan.augmentation), margin_text(plan));
  return fmt::format("{}; {}; {} thread{} on each rank{}, {} batches ahead", samples,
                     kOrders[static_cast<std::size_t>(plan.shuffle.kind)], plan.workers, plan.workers == 1 ? "" : "s",
                     plan.make_decoder ? " and the GPU's JPEG decoder" : "", plan.prefetch);
}

std::string order_of(const InputPlan& plan, const DatasetInfo& info) {
  const Shuffle& shuffle = plan.shuffle;
  return fmt::format("{}, {}",
                     info.is_text() ? fmt::format("{} windows of {} tokens", info.size, info.length)
                                    : fmt::format("{} images", info.size),
                     shuffle.kind == Shuffle::Kind::global
                         ? "--shuffle global"
                         : fmt::format("--shuffle block,size={},window={}", shuffle.block, shuffle.window));
}

InputPlan plan_input(const DataOptions& options, const DatasetInfo& info, Purpose purpose, std::size_t processors,
                     const ImageSize& trained) {
  InputPlan plan;
  if (info.is_text()) {
    expect_no_image_options(options);
    plan.window = {info.length, info.prediction};
    plan.shift_windows = purpose == Purpose::training && info.predicts_tokens();
  } else {
    if (options.length > 0) fail("--length: is for text, and the data is images; remove the option");
    plan.image = image_size(options, info, trained);
    plan.channels = info.channels;
    plan.margin = margin(plan.image, info);
    plan.augmentation = augmentation(options, info, purpose);
    expect_resizable(plan, info);
    expect_shiftable(plan);
    if (purpose == Purpose::evaluation) plan.views = views(options, plan, info);
  }
  plan.shuffle = shuffle(options, purpose);
  // A single thread reads decoded images faster than training consumes them.
  const bool ready = plan.takes_as_stored({info.height, info.width});
  plan.workers = options.workers > 0 ? options.workers : ready ? 1 : processors;
  plan.prefetch = options.prefetch;
  plan.skip_bad = options.on_bad_sample == "skip";
  plan.replace_bad = purpose == Purpose::training;
  return plan;
}

}  // namespace annulus
