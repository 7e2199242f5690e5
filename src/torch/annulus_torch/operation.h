#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/annulus_collectives.h"

namespace annulus {

// What the user reads if a group's operation ended with `status`; empty for ANNULUS_OK.
std::string text_of(const annulus_group* group, annulus_status status);

// A call of the process group, in one or more parts. When all parts are complete, the thread of the last part completes
// the future.
class Operation final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  Operation(std::shared_ptr<annulus_group> group, int rank, c10d::OpType type, const char* title, const Tensors& inputs,
            Tensors outputs, std::chrono::milliseconds timeout, bool waited_for, uint64_t number)
      : Work(rank, type, title, inputs),
        group_(std::move(group)),
        outputs_(std::move(outputs)),
        timeout_(timeout),
        waited_for_(waited_for),
        number_(number),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  int sourceRank() const override { return source_; }
  uint64_t getSequencenumber() const override { return number_; }
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  bool waited_for() const { return waited_for_; }  // the caller waits immediately

  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }           // until the end
  void then(std::function<void()> copy) { copies_.push_back(std::move(copy)); }  // when all parts are complete
  void comes_from(int rank) { source_ = rank; }

  void began() { ++parts_; }  // a part
  void began(annulus_work work) { works_.push_back(work); }
  // A part has ended, with an error if the text is not empty. The caller that made the operation counts as a part.
  void ended(const std::string& error);

 private:
  void end();

  const std::shared_ptr<annulus_group> group_;
  const Tensors outputs_;
  const std::chrono::milliseconds timeout_;
  const bool waited_for_;
  const uint64_t number_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  Tensors kept_;
  std::vector<std::function<void()>> copies_;
  std::vector<annulus_work> works_;
  std::string error_;
  std::atomic<int> parts_{1}, source_{-1};
};

using OperationPointer = c10::intrusive_ptr<Operation>;

}  // namespace annulus
