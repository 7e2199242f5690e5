#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/network/model.h"
#include "src/data/samples.h"
#include "src/step/class_counts.h"

namespace annulus {

// A value of an evaluation by which checkpoints are compared and runs end. To add a measure, add a line here and a row
// to the table in measure.cpp; options, messages, metrics, results and checkpoints follow.
enum class Measure {
  accuracy,       // share of the images whose class is the likeliest or, with several classes, all of whose classes are
                  // right; of text, share of the tokens that are the likeliest
  top5,           // share of the images whose class is among the SoftmaxCrossEntropy::kTop likeliest
  f1,             // mean F1 score (macro F1) over the classes that images have or that are predicted
  recall,         // mean of the shares of the classes' images that are predicted as the class (macro recall)
  mae,            // mean absolute error
  perplexity,     // of text: exp(loss)
  bits_per_byte,  // of text: the loss in bits, of all tokens, divided by the bytes that they stand for
  loss,           // mean; stays the last one
};
inline constexpr auto kMeasures = [] {
  std::array<Measure, static_cast<std::size_t>(Measure::loss) + 1> all{};
  for (std::size_t number = 0; number < all.size(); ++number) all[number] = static_cast<Measure>(number);
  return all;
}();

// Sums over the samples of an evaluation.
struct EvaluationSums {
  const LossSums& losses;
  double count = 0;   // images or tokens
  double length = 1;  // tokens of a text sample, over which losses are means
  const DatasetInfo& data;
  const ClassCounts* classes = nullptr;  // of images of several classes
};

struct MeasureInfo {
  // counted: samples are counted, and the value is their share; share: of 1, written in percent like a counted one.
  enum class Scale { counted, share, number };
  enum class Better { higher, lower };

  Measure measure;
  std::string_view name;       // in options and files
  std::string_view title;      // in texts
  std::string_view column;     // in metrics files
  std::string_view attribute;  // in checkpoints
  std::string_view goal;       // an example for --until
  Scale scale;
  Better better;
  bool (*is_measured)(const DatasetInfo& data);
  double (*of)(const EvaluationSums& sums);  // a number of samples if it is counted

  bool is_counted() const { return scale == Scale::counted; }
  bool is_share() const { return scale != Scale::number; }
};
const MeasureInfo& info(Measure measure);

std::vector<std::string> measure_names();
// Throws Error listing the names.
Measure parse_measure(const std::string& name);
std::string to_string(Measure measure);

// "accuracy 91.65 %", "loss 0.2434".
std::string to_string(Measure measure, double value);

// "accuracy=0.93, top5=0.99, ... or loss=0.2".
std::string example_goals();

// What an evaluation of such data measures, in order.
std::vector<Measure> measures_of(const DatasetInfo& data);

// What a training step measures besides the loss.
Measure step_measure(LabelKind labels);

}  // namespace annulus
