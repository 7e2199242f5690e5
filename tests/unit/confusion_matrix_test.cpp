#include "src/step/confusion_matrix.h"

#include <catch2/catch.hpp>
#include <limits>

namespace annulus {

// The numbers of sklearn.metrics.precision_recall_fscore_support.
TEST_CASE("precision and recall of each class") {
  const std::vector<std::size_t> labels{0, 0, 0, 0, 1, 1, 1, 2, 2, 0}, predicted{0, 1, 0, 2, 1, 1, 0, 0, 0, 1};
  ConfusionMatrix matrix(4);
  for (std::size_t i = 0; i < labels.size(); ++i) matrix.add(labels[i], predicted[i]);
  CHECK(matrix.count(0, 1) == 2);
  CHECK(matrix.count(1, 0) == 1);
  const auto first = matrix.result(0), second = matrix.result(1), third = matrix.result(2), fourth = matrix.result(3);
  CHECK((first.images == 5 && first.predicted == 5 && first.correct == 2));
  CHECK(first.precision().value() == Approx(0.4));
  CHECK(first.recall().value() == Approx(0.4));
  CHECK(second.precision().value() == Approx(0.5));
  CHECK(second.recall().value() == Approx(2.0 / 3));
  CHECK(second.f1().value() == Approx(4.0 / 7));
  CHECK((third.precision() == 0.0 && third.recall() == 0.0 && third.f1() == 0.0));
  CHECK((!fourth.precision() && !fourth.recall() && !fourth.f1()));
  const auto confusions = matrix.confusions(2);
  REQUIRE(confusions.size() == 2);
  CHECK((confusions[0].label == 0 && confusions[0].predicted == 1 && confusions[0].count == 2));
  CHECK((confusions[1].label == 2 && confusions[1].predicted == 0 && confusions[1].count == 2));
}

TEST_CASE("the predicted class is the first with the largest logit, and NaN is larger than any number") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(predicted_class(std::vector{1.0f, 3.0f, 3.0f, 2.0f}) == 1);
  CHECK(predicted_class(std::vector{5.0f}) == 0);
  CHECK(predicted_class(std::vector{1.0f, nan, 7.0f, nan}) == 1);
  CHECK(predicted_class(std::vector{nan, 7.0f}) == 0);
}

}  // namespace annulus
