#include <fmt/format.h>

#include "src/cli/choices.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/cli/settings.h"
#include "src/data/data_options.h"

namespace annulus {
namespace {

using Texts = std::vector<std::string>;

// Parses "2:9", changes and magnitude.
std::vector<std::size_t> parse_rand_augment(const std::string& text) {
  const std::string option = "--augment rand";
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw CLI::ValidationError(option, unexpected("changes:magnitude, such as 2:9", text));
  const auto number = [&option](const std::string& part, std::uint64_t most) {
    return static_cast<std::size_t>(parse_number(option, part, whole_number(0, most)));
  };
  return {number(text.substr(0, colon), 16), number(text.substr(colon + 1), 30)};
}

void add_augment_option(CLI::App& command, DataOptions& options) {
  const auto parse = [&options](const Texts& texts) {
    Settings settings("--augment", texts, {"auto", "none", "flip", "crop-flip", "imagenet", "imagenet-jitter"});
    options.augment = settings.name();
    options.mixup = settings.number("mixup", 0, number_from(0, 1));
    options.cutmix = settings.number("cutmix", 0, number_from(0, 1));
    options.erase = settings.number("erase", 0, number_from(0, 1));
    options.alternate = settings.flag("alternate");
    options.shift = static_cast<std::size_t>(settings.number("shift", 0, whole_number(0, 64)));
    const auto changes = settings.text("rand");
    options.rand_augment = changes ? parse_rand_augment(*changes) : DataOptions{}.rand_augment;
    settings.expect_no_other();
  };
  add_settings_option(command, "--augment", parse,
                      "Augmentation of training images, and settings, such as imagenet,mixup=0.2,cutmix=1:\n"
                      "none             centre crop, as in evaluation\n"
                      "flip             random horizontal flip\n"
                      "crop-flip        flip, and random shift by 4 pixels or crop of larger images\n"
                      "imagenet         random crop of 8 to 100 % of the area, resized, and flip\n"
                      "imagenet-jitter  imagenet, and random brightness, contrast, saturation\n"
                      "auto             imagenet for encoded images, none for others\n"
                      "alternate        flips each image in every second epoch, instead of at random\n"
                      "shift=N          random shift by up to N pixels; the edges are reflected\n"
                      "mixup=ALPHA      mixes images and labels with those of the next image, such as mixup=0.2\n"
                      "cutmix=ALPHA     replaces a rectangle by the next image's, and mixes labels, such as cutmix=1\n"
                      "erase=X          random erasing: probability that a rectangle is erased, such as erase=0.25\n"
                      "rand=N:M         RandAugment: N random changes (geometry and colours) of magnitude M, at most "
                      "30, such as rand=2:9")
      ->default_str("auto")
      ->group("Data");
}

void add_image_option(CLI::App& command, DataOptions& options) {
  const auto parse = [&options](const std::string& text) {
    options.image = 0;
    if (text == "0") return;
    const std::vector<std::size_t> image = parse_image(text, kMostPixels);
    if (image[0] != image[1] || image[2] != 0)
      throw CLI::ValidationError("--image", unexpected("a square without channels, such as 224 or 224x224", text));
    options.image = image[0];
  };
  command
      .add_option_function<std::string>(
          "--image", parse,
          "Size of the network's input: 224, or 224x224; 0: as stored; for JPEG and PNG images the size that an ONNX "
          "file was exported for, or 224")
      ->type_name("SIZE")
      ->default_str("0")
      ->group("Data");
}

void add_shuffle_option(CLI::App& command, DataOptions& options) {
  const auto parse = [&options](const Texts& texts) {
    Settings settings("--shuffle", texts, {"global", "block"});
    const auto count = [&settings](const std::string& key, std::size_t initial, std::uint64_t most) {
      return static_cast<std::size_t>(settings.number(key, static_cast<double>(initial), whole_number(1, most)));
    };
    options.shuffle = settings.name();
    if (options.shuffle == "block") {
      options.shuffle_block = count("size", DataOptions{}.shuffle_block, 1 << 30);
      options.shuffle_window = count("window", DataOptions{}.shuffle_window, 1 << 20);
    }
    settings.expect_no_other();
  };
  add_settings_option(command, "--shuffle", parse,
                      "Sample order: global (uniformly shuffled) or block (files are read nearly sequentially); "
                      "block,size=256,window=16 mixes 16 blocks of 256 images at a time, as block does")
      ->default_str("global")
      ->group("Data");
}

}  // namespace

CLI::Option* add_views_option(CLI::App& command, DataOptions& options) {
  return command
      .add_option("--views", options.views,
                  "Views of each image whose logits an evaluation averages: one, mirror (with the mirror image), or "
                  "mirror-shift (and both moved by a pixel to two sides)")
      ->check(one_of({"one", "mirror", "mirror-shift"}))
      ->capture_default_str();
}

void add_input_options(CLI::App& command, DataOptions& options, Purpose purpose) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Data");
  };
  add_image_option(command, options);
  add("--length", options.length,
      fmt::format("Text: tokens of a window, from which the network predicts; 0: {}, or the trained network's",
                  kDefaultLength))
      ->transform(whole_number(0, kMostLength));
  if (purpose == Purpose::training) {
    add_augment_option(command, options);
    add_shuffle_option(command, options);
  }
  add("--workers", options.workers,
      "Reader threads per rank; 0: one if images are stored as needed, else a quarter of the processors, or with a GPU "
      "all but one of its share of the node's")
      ->transform(whole_number(0, 256));
  add("--prefetch", options.prefetch, "Batches to prepare ahead")->transform(whole_number(1, 1024));
  add("--decode", options.decode,
      "Decoder of JPEG images: cpu, gpu (the hardware decoder of a GPU that computes), or auto (the faster one, "
      "measured at the start; of a resumed or evaluated run, the same as before)")
      ->check(one_of({"auto", "cpu", "gpu"}));
  add("--on-bad-sample", options.on_bad_sample,
      "Action on a damaged image or invalid label: fail (abort the run) or skip")
      ->check(one_of({"fail", "skip"}));
}

}  // namespace annulus
