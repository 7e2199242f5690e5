#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/mixed_label.h"

namespace annulus {

// Kinds of labels in a data set.
enum class LabelKind {
  one_class,        // a single class
  several_classes,  // any number of classes
  values,           // real numbers that the network is to predict: regression
  tokens,           // the next token, at each place in a text
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

// Forms in which a network takes a sample's label.
enum class LabelForm {
  one_class,  // {batch}, int32: the class
  mixed,      // {batch, 3}: a MixedLabel
  targets,    // {batch, width}, float32: a target for each network output
};

// A batch's labels, in the form that the network takes.
struct Labels {
  std::span<const std::int32_t> classes{};
  std::span<const MixedLabel> mixed{};  // if empty, `classes` are not mixed
  std::span<const float> targets{};     // for each sample in turn
};

}  // namespace annulus
