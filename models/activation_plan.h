#pragma once

#include <optional>
#include <vector>

#include "kernels/device.h"
#include "models/graph.h"
#include "models/memory_plan.h"

namespace annulus {

// Where everything lies that flows through a network: in one arena, in which memory is used again as soon as nobody
// will read what is there. The moments of a step are its operations' forward passes and, in training, their backward
// passes, in the order in which they run.
//
// The images and the labels come from outside and lie elsewhere.
class ActivationPlan {
 public:
  using Piece = std::optional<std::size_t>;  // of the arena; none where there is nothing to lie there

  // Where a node writes the gradient of one of its inputs. Of several nodes that read a value the first to run in
  // backward writes its gradient, the others add to it. Where one cannot add while it computes it writes to a piece of
  // its own, from where it is added afterwards, or by the node that made the value.
  struct InputGradient {
    Piece piece;              // none: nobody wants it
    bool accumulate = false;  // it adds while it computes
    Piece added_to = {};      // to what the piece is added afterwards
  };

  // `ops`: of every node; `specs`: of every value. Throws Error where training needs a gradient that nobody makes.
  ActivationPlan(const Graph& graph, std::vector<const Op*> ops, std::vector<TensorSpec> specs, Mode mode);

  Piece value(Value value) const { return values_[value]; }
  Piece gradient(Value value) const { return gradients_[value]; }
  Piece second_gradient(Value value) const { return second_gradients_[value]; }  // Bindings::second_output_gradient
  const std::vector<InputGradient>& input_gradients(std::size_t node) const { return input_gradients_[node]; }
  Piece scratch() const { return scratch_; }

  DeviceView view(const Piece& piece, DeviceView arena) const;  // empty for none
  std::size_t bytes() const { return plan_.bytes; }
  std::size_t bytes_without_reuse() const;  // if every piece had its own place

 private:
  std::size_t forward(std::size_t node) const { return node; }  // moments
  std::size_t backward(std::size_t node) const { return 2 * ops_.size() - 1 - node; }
  std::size_t end() const { return 2 * ops_.size(); }
  std::size_t backward_of(Value value) const { return backward(value - Graph::output(0)); }

  void find_wanted();
  void find_last_reads();
  void place_output(std::size_t node);
  void place_input_gradients(std::size_t node);
  InputGradient place_input_gradient(std::size_t node, std::size_t input);
  Piece add(std::size_t bytes, std::size_t begin, std::size_t end);
  std::size_t bytes(Value value) const { return specs_[value].layout->bytes(); }

  const Graph& graph_;
  std::vector<const Op*> ops_;
  std::vector<TensorSpec> specs_;
  bool training_;
  std::vector<bool> wanted_;             // whose gradients
  std::vector<std::size_t> last_read_;   // moments
  std::vector<std::size_t> first_node_;  // that reads a value, and so the last that writes its gradient

  std::vector<Piece> values_, gradients_, second_gradients_;
  std::vector<std::vector<InputGradient>> input_gradients_;
  Piece scratch_;
  std::vector<Lifetime> pieces_;
  MemoryPlan plan_;
};

}  // namespace annulus
