#include "kernels/base/window_form.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {

std::size_t masked_tokens(std::size_t length) {
  return std::max<std::size_t>(1, (3 * length + 10) / 20);
}

std::size_t WindowForm::size() const {
  return elements(shape());
}

std::size_t WindowForm::predicted() const {
  return prediction == Prediction::next ? 1 : length;
}

std::size_t WindowForm::targets() const {
  return prediction == Prediction::next ? length : prediction == Prediction::masked ? masked_tokens(length) : 0;
}

Shape WindowForm::shape() const {
  if (prediction == Prediction::next) return {length + 1};
  return {prediction == Prediction::masked ? std::size_t{2} : 1, length};
}

WindowForm window_form(const Shape& windows) {
  if (windows.size() == 2 && windows[1] > 1) return {windows[1] - 1};
  if (windows.size() != 3 || windows[1] == 0 || windows[1] > 2)
    fail("windows are {{batch, length + 1}} or {{batch, 1 or 2, length}}, not {}", to_string(windows));
  return {windows[2], windows[1] == 2 ? Prediction::masked : Prediction::label};
}

}  // namespace annulus
