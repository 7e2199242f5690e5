#include "src/train/recipes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      // Sections 2.1, 2.2 and 5.1: 76.3 % with 8192 images per step, on 256 workers with 32 images each.
      {"goyal",
       "ResNet-50 on ImageNet, any number of ranks with 32 images each",
       "Goyal et al., \"Accurate, large minibatch SGD\", 2017",
       {{"model", "resnet50"},
        {"batch", "32"},
        {"epochs", "90"},
        {"augment", "imagenet"},
        {"optimizer", "sgd"},
        {"momentum", "0.9"},
        {"nesterov", "true"},
        {"zero-init", "true"},
        {"weight-decay", "0.0001"},
        {"lr", "0.1"},
        {"lr-per", "256"},
        {"warmup", "5"},
        {"schedule", "step"},
        {"lr-steps", "30,60,80"},
        {"lr-factor", "0.1"}}},
      // Section 4.2: 64,000 iterations of 128 images, a lower rate after 32,000 and 48,000; converted to epochs of
      // 50,000 images.
      {"he-cifar",
       "ResNet-20 to ResNet-110 on CIFAR-10",
       "He et al., \"Deep residual learning for image recognition\", 2015",
       {{"model", "resnet20"},
        {"global-batch", "128"},
        {"epochs", "164"},
        {"augment", "crop-flip"},
        {"optimizer", "sgd"},
        {"momentum", "0.9"},
        {"weight-decay", "0.0001"},
        {"lr", "0.1"},
        {"schedule", "step"},
        {"lr-steps", "82,123"},
        {"lr-factor", "0.1"}}},
      // Sections 3.1, 5.1 and 5.2, without mixup.
      {"bag-of-tricks",
       "ResNet-50 on ImageNet with a cosine schedule and label smoothing",
       "He et al., \"Bag of tricks for image classification\", 2019",
       {{"model", "resnet50"},
        {"global-batch", "1024"},
        {"epochs", "120"},
        {"augment", "imagenet-jitter"},
        {"optimizer", "sgd"},
        {"momentum", "0.9"},
        {"nesterov", "true"},
        {"weight-decay", "0.0001"},
        {"label-smoothing", "0.1"},
        {"zero-init", "true"},
        {"lr", "0.1"},
        {"lr-per", "256"},
        {"warmup", "5"},
        {"warmup-from", "0"},
        {"schedule", "cosine"}}},
      // The rate and the warm-up are those of TensorFlow's reference implementation for less than 16,384 images.
      {"lars",
       "ResNet-50 on ImageNet, 8192 images per step",
       "You et al., \"Large batch training of convolutional networks\", 2017, as in MLPerf 0.6",
       {{"model", "resnet50"},
        {"global-batch", "8192"},
        {"epochs", "90"},
        {"augment", "imagenet"},
        {"optimizer", "lars"},
        {"momentum", "0.9"},
        {"trust", "0.001"},
        {"weight-decay", "0.0001"},
        {"label-smoothing", "0.1"},
        {"lr", "10"},
        {"warmup", "5"},
        {"schedule", "polynomial"},
        {"lr-power", "2"},
        {"lr-end", "0.0001"}}},
      {"fashion",
       "a small network on Fashion-MNIST in minutes",
       "ours: 92.6 % in a single measured run of 149 s on 2 cores",
       {{"model", "cnn"},
        {"global-batch", "128"},
        {"epochs", "8"},
        {"optimizer", "sgd"},
        {"momentum", "0.9"},
        {"weight-decay", "0.0005"},
        {"lr", "0.05"},
        {"warmup", "0.5"},
        {"schedule", "cosine"}}},
  };
  return all;
}

const Recipe& find_recipe(std::string_view name) {
  const auto found = std::ranges::find(recipes(), name, &Recipe::name);
  if (found != recipes().end()) return *found;
  std::vector<std::string_view> names;
  std::ranges::transform(recipes(), std::back_inserter(names), &Recipe::name);
  fail("unknown recipe \"{}\"; known recipes: {}", name, fmt::join(names, ", "));
}

}  // namespace annulus
