#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/mixed_label.h"

namespace annulus {

// What the labels of a data set are.
enum class LabelKind {
  one_class,        // one of the classes
  several_classes,  // any number of the classes
  values,           // real numbers, which the network is to predict: regression
  tokens,           // the next token, at each place of a text
};

inline std::string_view description(LabelKind kind) {
  switch (kind) {
    case LabelKind::one_class:
      return "one class for each image";
    case LabelKind::several_classes:
      return "any number of classes for each image";
    case LabelKind::tokens:
      return "the next token of a text";
    case LabelKind::values:
      break;
  }
  return "real numbers";
}

// "10 classes", "3 values for each image", "257 tokens".
inline std::string counted(LabelKind kind, std::size_t count) {
  const std::string number = std::to_string(count);
  if (kind == LabelKind::one_class) return number + " classes";
  if (kind == LabelKind::tokens) return number + " tokens";
  if (kind == LabelKind::several_classes) return number + " classes, any number for each image";
  return number + (count == 1 ? " value for each image" : " values for each image");
}

// What the label of a sample is to a network.
enum class LabelForm {
  one_class,  // {batch}, int32: its class
  mixed,      // {batch, 3}: a MixedLabel
  targets,    // {batch, width}, float32: a target for each of the network's outputs
};

// The labels of a batch's samples, in the form that the network takes.
struct Labels {
  std::span<const std::int32_t> classes{};
  std::span<const MixedLabel> mixed{};  // if empty, `classes` are not mixed
  std::span<const float> targets{};     // those of each sample, one after the other
};

}  // namespace annulus
