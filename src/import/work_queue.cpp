#include "src/import/work_queue.h"

#include <utility>

#include "kernels/base/clock.h"

namespace annulus {
namespace {

// Rank 0's answers other than a piece's number. After the first two a rank sends no more messages.
constexpr std::int64_t kNoMore = -1, kStop = -2, kGoOn = -3;

constexpr double kSecondsBetweenWords = 0.2;
constexpr int kWordTag = 0, kAnswerTag = 1;

}  // namespace

WorkQueue::WorkQueue(const World& world, std::vector<std::size_t> pieces, std::function<void(const Totals&)> heard)
    : world_(world),
      communicator_(world.duplicate()),
      pieces_(std::move(pieces)),
      heard_(std::move(heard)),
      at_work_(world.size() - 1) {}

std::optional<std::size_t> WorkQueue::next() {
  if (released_) return {};
  word_.finished_piece = std::exchange(working_, true);
  const std::int64_t piece = tell(true, false);
  if (piece < 0) return {};
  return static_cast<std::size_t>(piece);
}

bool WorkQueue::report(std::size_t images, std::size_t bytes) {
  word_.images += static_cast<std::int64_t>(images);
  word_.bytes += static_cast<std::int64_t>(bytes);
  if (world_.root()) serve_those_who_ask();
  if (now_seconds() - told_ < kSecondsBetweenWords) return !released_ && !stopped_;
  return tell(false, false) == kGoOn;
}

void WorkQueue::finish(bool stopping) {
  if (stopping && !released_) tell(false, true);
  if (!world_.root()) return;
  while (at_work_ > 0) serve(MPI_ANY_SOURCE);
}

// Rank 0 needs no message to itself.
std::int64_t WorkQueue::tell(bool wants_piece, bool stops) {
  told_ = now_seconds();
  Word word = std::exchange(word_, {});
  word.wants_piece = wants_piece;
  word.stops = stops;
  std::int64_t reply = 0;
  if (world_.root()) {
    reply = answer(word);
  } else {
    check(MPI_Send(&word, sizeof word, MPI_BYTE, 0, kWordTag, communicator_.handle()));
    check(MPI_Recv(&reply, 1, MPI_INT64_T, 0, kAnswerTag, communicator_.handle(), MPI_STATUS_IGNORE));
  }
  released_ = reply == kNoMore || reply == kStop;
  return reply;
}

std::int64_t WorkQueue::answer(const Word& word) {
  totals_.images += static_cast<std::size_t>(word.images);
  totals_.bytes += static_cast<std::size_t>(word.bytes);
  totals_.pieces += static_cast<std::size_t>(word.finished_piece);
  heard_(totals_);
  if (word.stops) stopped_ = true;
  if (stopped_) return kStop;
  if (!word.wants_piece) return kGoOn;
  return given_ < pieces_.size() ? static_cast<std::int64_t>(pieces_[given_++]) : kNoMore;
}

void WorkQueue::serve(int rank) {
  Word word{};
  MPI_Status status;
  check(MPI_Recv(&word, sizeof word, MPI_BYTE, rank, kWordTag, communicator_.handle(), &status));
  const std::int64_t reply = answer(word);
  if (reply == kNoMore || reply == kStop) --at_work_;
  check(MPI_Send(&reply, 1, MPI_INT64_T, status.MPI_SOURCE, kAnswerTag, communicator_.handle()));
}

void WorkQueue::serve_those_who_ask() {
  while (at_work_ > 0) {
    int asks = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kWordTag, communicator_.handle(), &asks, &status));
    if (!asks) return;
    serve(status.MPI_SOURCE);
  }
}

}  // namespace annulus
