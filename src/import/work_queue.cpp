#include "src/import/work_queue.h"

#include <utility>

#include "kernels/base/clock.h"

namespace annulus {
namespace {

// Rank 0's answers other than a piece's number. After the first two a rank sends no more messages.
constexpr std::int64_t kNoMore = -1, kStop = -2, kGoOn = -3;

constexpr double kSecondsBetweenMessages = 0.2;
constexpr int kMessageTag = 0, kAnswerTag = 1;

}  // namespace

WorkQueue::WorkQueue(const World& world, std::vector<std::size_t> pieces, std::function<void(const Totals&)> progressed)
    : world_(world),
      communicator_(world.communicator()),
      pieces_(std::move(pieces)),
      progressed_(std::move(progressed)),
      at_work_(world.size() - 1) {}

std::optional<std::size_t> WorkQueue::next() {
  if (released_) return {};
  message_.finished_piece = std::exchange(working_, true);
  const std::int64_t piece = send(true, false);
  if (piece < 0) return {};
  return static_cast<std::size_t>(piece);
}

bool WorkQueue::report(std::size_t images, std::size_t bytes) {
  message_.images += static_cast<std::int64_t>(images);
  message_.bytes += static_cast<std::int64_t>(bytes);
  if (world_.root()) serve_requests();
  if (now_seconds() - sent_ < kSecondsBetweenMessages) return !released_ && !stopped_;
  return send(false, false) == kGoOn;
}

void WorkQueue::finish(bool stopping) {
  if (stopping && !released_) send(false, true);
  if (!world_.root()) return;
  while (at_work_ > 0) serve(MPI_ANY_SOURCE);
}

// Rank 0 needs no message to itself.
std::int64_t WorkQueue::send(bool wants_piece, bool stops) {
  sent_ = now_seconds();
  Message message = std::exchange(message_, {});
  message.wants_piece = wants_piece;
  message.stops = stops;
  std::int64_t reply = 0;
  if (world_.root()) {
    reply = answer(message);
  } else {
    check(MPI_Send(&message, sizeof message, MPI_BYTE, 0, kMessageTag, communicator_.handle()));
    check(MPI_Recv(&reply, 1, MPI_INT64_T, 0, kAnswerTag, communicator_.handle(), MPI_STATUS_IGNORE));
  }
  released_ = reply == kNoMore || reply == kStop;
  return reply;
}

std::int64_t WorkQueue::answer(const Message& message) {
  totals_.images += static_cast<std::size_t>(message.images);
  totals_.bytes += static_cast<std::size_t>(message.bytes);
  totals_.pieces += static_cast<std::size_t>(message.finished_piece);
  progressed_(totals_);
  if (message.stops) stopped_ = true;
  if (stopped_) return kStop;
  if (!message.wants_piece) return kGoOn;
  return given_ < pieces_.size() ? static_cast<std::int64_t>(pieces_[given_++]) : kNoMore;
}

void WorkQueue::serve(int rank) {
  Message message{};
  MPI_Status status;
  check(MPI_Recv(&message, sizeof message, MPI_BYTE, rank, kMessageTag, communicator_.handle(), &status));
  const std::int64_t reply = answer(message);
  if (reply == kNoMore || reply == kStop) --at_work_;
  check(MPI_Send(&reply, 1, MPI_INT64_T, status.MPI_SOURCE, kAnswerTag, communicator_.handle()));
}

void WorkQueue::serve_requests() {
  while (at_work_ > 0) {
    int asks = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kMessageTag, communicator_.handle(), &asks, &status));
    if (!asks) return;
    serve(status.MPI_SOURCE);
  }
}

}  // namespace annulus
