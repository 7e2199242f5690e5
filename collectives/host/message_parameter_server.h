#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/parameter_server.h"
#include "collectives/world/channel.h"
#include "kernels/base/host_memory.h"

namespace annulus {

// A ParameterServer over MPI messages, for ranks on several nodes. The owner's thread answers the workers while it
// waits for contributions:
//
//    worker                                          owner
//    await_steps(step)    -- request: step -->
//                         <-- reply: step' -- when it has published step' >= step, the newest
//    pull()               <--    weights   --
//    contribute()         --   gradients   -->       await_contribution()
//
// A message has the packed values of an owner's ranges. A rank also sends messages to itself.
//
// MPI's one-sided communication would need that thread, too: an access makes progress only while the target calls MPI.
// Open MPI 4.1 has none over TCP in a multi-threaded program (MPI_Win_allocate fails).
class MessageParameterServer final : public ParameterServer {
 public:
  // See make_parameter_server().
  MessageParameterServer(const World& world, const std::vector<Range>& own, std::size_t count, std::size_t pending);
  // Messages that were sent and not received must not lose their memory before the receivers have withdrawn.
  ~MessageParameterServer() override;

  void await_steps(std::uint64_t step) override;
  std::uint64_t pull(std::span<float> weights) override;
  std::span<float> contribution() override { return floats(contribution_.view()); }
  void contribute() override;

  std::span<const float> await_contribution(std::size_t rank) override;
  void publish(std::uint64_t step, std::span<const float> weights) override;
  void serve(std::uint64_t step) override;
  void withdraw() override;

 private:
  // A worker's exchange with an owner.
  struct Owner {
    Range packed;  // the ranges' place in an array with all owners' packed ranges
    std::uint64_t step = 0;
    MPI_Request sent_request = MPI_REQUEST_NULL, step_arrives = MPI_REQUEST_NULL, weights_arrive = MPI_REQUEST_NULL;
  };
  // A contribution that is being sent to the owners.
  struct Sent {
    Buffer packed;
    std::vector<MPI_Request> requests;  // to each owner
  };
  // An owner's exchange with a worker.
  struct Worker {
    Buffer gradients, weights;  // packed
    MPI_Request gradients_arrive = MPI_REQUEST_NULL, request_arrives = MPI_REQUEST_NULL;
    std::uint64_t requested = 0, replied = 0;  // steps
    bool waits = false;                        // for the reply to a request
    MPI_Request sent_step = MPI_REQUEST_NULL, sent_weights = MPI_REQUEST_NULL;
  };

  void receive_gradients(std::size_t rank);
  void receive_request(std::size_t rank);
  bool reply_to_workers();
  void reply(std::size_t rank);
  bool has_step(Worker& worker, std::uint64_t step) const;
  template <class Done>
  void reply_until(const Done& done);

  const Channel gradients_, requests_, replies_;

  std::vector<Owner> owners_;
  Buffer contribution_, pulled_;  // pulled_ is packed
  std::uint64_t needed_ = 0;      // the step that was awaited last
  std::vector<Sent> sent_;        // used in turn
  std::uint64_t contributed_ = 0;

  std::vector<Worker> workers_;
  Buffer arrived_;               // a contribution in the array's layout
  Buffer weights_;               // packed, from the last published step
  std::uint64_t published_ = 0;  // steps + 1
};

}  // namespace annulus
