#include "src/onnx/network_input.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/input_normalization.h"
#include "src/onnx/language_model.h"

namespace annulus {
namespace {

// {batch, classes, 1, 1} as {batch, classes}.
Value flattened(GraphBuilder& builder, Value logits) {
  const Shape shape = builder.shape(logits, 1);
  const bool images = shape.size() > 2 && builder.batch(logits) == BatchPlace{0, 1};
  if (!images || elements(shape) != shape[1]) return logits;
  return builder.add({"flatten", Operation(Reshape{{Reshape::kInferred, shape[1]}}), {logits}});
}

class ImagesInput : public NetworkInput {
 public:
  ImagesInput(const OnnxFile& file, const Task& task) : file_(file), task_(task) {}

  // As float32, images have mean 0 and std 1 until choose_pixels(), so that the network's own normalization can be
  // read.
  std::map<std::string, Item, std::less<>> add(GraphBuilder& builder) const override {
    const auto input = file_.input_shape();
    const std::size_t channels = task_.image.channels;
    if (input[1] != channels) {
      const bool swapped = !file_.channels_last() && input[3] == channels;
      fail("{}: its images have {} channels, but the data's have {}{}", file_.name(), input[1], channels,
           swapped ? "; if they are {batch, height, width, channels}, begin forward() with images.permute(0, 3, 1, 2)"
                   : "");
    }
    const ImageInput scale{std::vector<float>(channels, 0),
                           std::vector<float>(channels, file_.raw_pixels() ? 1.0f / 255 : 1)};
    Value images = builder.add({"input", Operation(scale), {Graph::kImages}});
    if (file_.channels_last()) images = builder.add({"input.permute", Operation(Transpose{{0, 2, 3, 1}}), {images}});
    return {{file_.input().name(), Computed{images}}};
  }

  Value end(GraphBuilder& builder, Value output, std::vector<std::string>& notes) override {
    const Value logits = flattened(builder, output);
    if (!file_.raw_pixels()) choose_pixels(builder, logits, notes);
    return logits;
  }

  Pixels pixels() const override { return pixels_; }
  const char* sample() const override { return "image"; }

 private:
  // Makes the image inputs give the pixels that the network expects.
  void choose_pixels(GraphBuilder& builder, Value logits, std::vector<std::string>& notes) {
    const PixelDecision decision =
        file_.pixels() == Pixels::automatic ? decide_pixels(builder, logits) : decided_by_user(file_.pixels());
    if (!decision.reason.empty()) notes.push_back(decision.reason);
    pixels_ = decision.pixels;
    set_pixels(builder, pixels_, task_.mean, task_.stddev);
  }

  const OnnxFile& file_;
  const Task& task_;
  Pixels pixels_ = Pixels::automatic;
};

class TokensInput : public NetworkInput {
 public:
  TokensInput(const OnnxFile& file, const Task& task, std::size_t batch) : file_(file), task_(task), batch_(batch) {}

  std::map<std::string, Item, std::less<>> add(GraphBuilder&) const override {
    const std::size_t own = file_.token_input().length, length = task_.tokens.length;
    if (own != 0 && own != length)
      fail("{}: it was exported for windows of {} tokens, not {}: give --length {}, or export it with an open length",
           file_.name(), own, length, own);
    std::map<std::string, Item, std::less<>> items{{file_.input().name(), Tokens{{batch_, length}}}};
    for (const FixedInput& fixed : file_.fixed_inputs()) {
      if (length > kMostConstantElements / std::max(batch_, other_batch(batch_)))
        fail("{}: its input {} of {} windows of {} tokens is too large", file_.name(), fixed.name, batch_, length);
      const auto windows = [&](std::size_t batch) {
        HostTensor made = whole_numbers({batch, length}, std::vector(batch * length, fixed.value));
        if (fixed.truths) made.kind = HostTensor::Kind::truth;
        return made;
      };
      items[fixed.name] =
          std::make_shared<const HostTensor>(for_batches(windows(batch_), windows(other_batch(batch_))));
    }
    return items;
  }

  Value end(GraphBuilder& builder, Value output, std::vector<std::string>& notes) override {
    for (const FixedInput& fixed : file_.fixed_inputs())
      notes.push_back(fmt::format("its input {} is {} for every token: windows are full", fixed.name, fixed.value));
    if (task_.labels == LabelKind::tokens) return language_model_head(builder, output, task_.tokens.prediction);
    return flattened(builder, output);
  }

  const char* sample() const override { return "text"; }

 private:
  const OnnxFile& file_;
  const Task& task_;
  const std::size_t batch_;
};

}  // namespace

std::unique_ptr<NetworkInput> make_network_input(const OnnxFile& file, const Task& task, std::size_t batch) {
  if (file.reads_tokens() != task.reads_tokens())
    fail("{}: it reads {}, and the data is {}", file.name(), file.reads_tokens() ? "tokens" : "images",
         task.reads_tokens() ? "text" : "images");
  if (task.reads_tokens()) return std::make_unique<TokensInput>(file, task, batch);
  return std::make_unique<ImagesInput>(file, task);
}

}  // namespace annulus
