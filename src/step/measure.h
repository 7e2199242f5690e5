#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// A value of an evaluation by which checkpoints are compared and runs end. In the order in which they are reported: the
// first one that was measured is the main one.
enum class Measure {
  f1,             // mean of the classes' F1 scores (macro F1), of those that images have or that are predicted
  mae,            // mean absolute error
  perplexity,     // of text: exp(loss)
  bits_per_byte,  // of text: the loss in bits, of all tokens, divided by the bytes that they stand for
  accuracy,       // share of the images whose class is the likeliest or, with several classes, all of whose classes are
                  // right; of text, share of the tokens that are the likeliest
  top5,           // share of the images whose class is among the SoftmaxCrossEntropy::kTop likeliest
  loss,           // mean
};
inline constexpr std::array kMeasures{Measure::f1,       Measure::mae,  Measure::perplexity, Measure::bits_per_byte,
                                      Measure::accuracy, Measure::top5, Measure::loss};

struct MeasureInfo {
  std::string_view name;   // in options and files
  std::string_view title;  // in texts
  bool is_share;           // of 1, written in percent
  bool less_is_better;
};
const MeasureInfo& info(Measure measure);

std::vector<std::string> measure_names();
// Throws Error listing the names.
Measure parse_measure(const std::string& name);
std::string to_string(Measure measure);

// "accuracy 91.65 %", "loss 0.2434".
std::string to_string(Measure measure, double value);

// What an evaluation of such data measures, in order.
std::vector<Measure> measures_of(const DatasetInfo& data);

// What a training step measures besides its loss.
Measure step_measure(LabelKind labels);

}  // namespace annulus
