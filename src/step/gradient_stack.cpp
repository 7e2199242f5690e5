#include "src/step/gradient_stack.h"

#include <algorithm>
#include <utility>

namespace annulus {
namespace {

// Returns the largest number of a step's earlier sums.
std::size_t largest_height(const TreeOrder& order) {
  std::size_t height = 0, most = 0;
  for (std::size_t part = 0; part + 1 < order.joins.size(); ++part) {
    height = height + 1 - order.joins[part];
    most = std::max(most, height);
  }
  return most;
}

}  // namespace

void GradientStack::plan_parts(std::size_t most_parts) {
  order_ = {};
  allocate(most_parts > 1 ? 1 : 0, 1);
}

void GradientStack::plan_shards(const TreeOrder& order) {
  order_ = order;
  allocate(largest_height(order), order.sums.size());
}

void GradientStack::allocate(std::size_t height, std::size_t subtrees) {
  sums_.clear();
  for (std::size_t number = 0, own = 0; number < height; ++number)
    if (number + 1 < subtrees) {
      sums_.push_back(all_reduce_.addend(arena_, number));
    } else {
      if (own == memory_.size()) memory_.push_back(device_.allocate(arena_.bytes));
      sums_.push_back(memory_[own++].view());
    }
}

void GradientStack::begin(std::size_t parts) {
  part_ = height_ = 0;
  if (parts > 1 && order_.joins.empty()) device_.zero(sums_[height_++]);
}

void GradientStack::push() {
  std::size_t left = joins();
  ++part_;
  for (; left > 1; --left) device_.add(sum(--height_), gradients_, DataType::f32);
  if (left == 1)
    device_.add(gradients_, sum(height_ - 1), DataType::f32);
  else  // adding to zeros would turn -0 to 0
    device_.copy(gradients_, sum(height_++));
}

void GradientStack::begin_last() {
  joining_ = joins();
  added_ = 0;
}

void GradientStack::add(std::size_t count) {
  const std::size_t flags = arena_.bytes - gradients_.bytes, end = count * sizeof(float);
  if (end <= flags + added_) return;
  const std::size_t begin = std::exchange(added_, end - flags), bytes = added_ - begin;
  for (std::size_t number = 1; number <= joining_; ++number)
    device_.add(sum(height_ - number).slice(begin, bytes), gradients_.slice(begin, bytes), DataType::f32);
}

// Returns a sum without the control flags.
DeviceView GradientStack::sum(std::size_t number) const {
  return sums_[number].slice(arena_.bytes - gradients_.bytes, gradients_.bytes);
}

}  // namespace annulus
