#include "collectives/world/world.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {

namespace {

// Channel contexts reserved between two losses of ranks; a run creates fewer channels.
constexpr int kContextsOfLoss = 1024;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Returns each rank's node: the job rank of the node's first rank.
std::vector<int> find_nodes(const Communicator& job, int ranks_per_node) {
  const Communicator node = Communicator::on_this_node(job.handle());
  const int own = job.rank();
  std::vector<int> here(static_cast<std::size_t>(node.size()));
  check(MPI_Allgather(&own, 1, MPI_INT, here.data(), 1, MPI_INT, node.handle()));
  const int first = ranks_per_node == 0 ? 0 : node.rank() / ranks_per_node * ranks_per_node;
  const int leader = here[static_cast<std::size_t>(first)];
  std::vector<int> nodes(static_cast<std::size_t>(job.size()));
  check(MPI_Allgather(&leader, 1, MPI_INT, nodes.data(), 1, MPI_INT, job.handle()));
  return nodes;
}

// The binomial tree over a world's ranks, with root 0: the children of a rank are rank + 1, rank + 2, rank + 4, ...,
// below the rank's lowest bit. A child's subtree has consecutive ranks.
int parent(int rank) {
  return rank & (rank - 1);
}
template <class Visit>
void for_each_child(int rank, int size, const Visit& visit) {
  for (int bit = 1; (rank & bit) == 0 && rank + bit < size; bit *= 2)
    visit(rank + bit, std::min(bit, size - rank - bit));
}

}  // namespace

World::World(int ranks_per_node, MPI_Comm job) : World(std::make_shared<MpiCarrier>(job), ranks_per_node) {}

World::World(const std::shared_ptr<MpiCarrier>& carrier, int ranks_per_node)
    : World(carrier, find_nodes(carrier->communicator(), ranks_per_node)) {}

World::World(const std::shared_ptr<Carrier>& node)
    : World(node, std::vector<int>(static_cast<std::size_t>(node->size()), 0)) {}

World::World(const std::shared_ptr<Carrier>& carrier, std::vector<int> nodes)
    : World(carrier, 0, all_ranks(carrier->size()), std::move(nodes)) {
  carrier_->next_context = 1;
}

World::World(std::shared_ptr<Carrier> carrier, int context, std::vector<int> ranks_in_job, std::vector<int> nodes)
    : carrier_(std::move(carrier)),
      ranks_in_job_(std::move(ranks_in_job)),
      nodes_(std::move(nodes)),
      channel_(carrier_, ranks_in_job_, context) {
  count_ranks();
}

void World::count_ranks() {
  rank_ = static_cast<int>(std::ranges::find(ranks_in_job_, carrier_->rank()) - ranks_in_job_.begin());
  local_rank_ = local_ranks()[static_cast<std::size_t>(rank_)];
  std::map<int, int> sizes;
  for (const int node : nodes_) ++sizes[node];
  local_size_ = sizes[nodes_[static_cast<std::size_t>(rank_)]];
  const auto [least, most] = std::ranges::minmax_element(sizes, {}, [](const auto& node) { return node.second; });
  smallest_node_ = least->second;
  largest_node_ = most->second;
}

// Returns each rank's number within its node.
std::vector<int> World::local_ranks() const {
  std::map<int, int> counts;
  std::vector<int> ranks;
  for (const int node : nodes_) ranks.push_back(counts[node]++);
  return ranks;
}

void World::continue_with(const std::vector<int>& ranks_in_job, int losses) {
  std::vector<int> nodes;
  for (const int rank : ranks_in_job)
    nodes.push_back(nodes_[static_cast<std::size_t>(std::ranges::find(ranks_in_job_, rank) - ranks_in_job_.begin())]);
  ranks_in_job_ = ranks_in_job;
  nodes_ = std::move(nodes);
  const int context = losses * kContextsOfLoss;
  if (carrier_->next_context > context)
    fail("the ranks have had more than {} channels since the last loss", kContextsOfLoss);
  channel_ = Channel(carrier_, ranks_in_job_, context);
  carrier_->next_context = context + 1;
  carrier_->interruption.reset();
  count_ranks();
}

// Returns the smallest number that no rank has used in any world, as MPI does.
int World::new_context() const {
  double next = carrier_->next_context;
  maximum({&next, 1});
  carrier_->next_context = static_cast<int>(next) + 1;
  return static_cast<int>(next);
}

template <class Belongs>
World World::part(const Belongs& belongs, bool each_a_node) const {
  const int context = new_context();
  std::vector<int> ranks, nodes;
  for (std::size_t rank = 0; rank < ranks_in_job_.size(); ++rank)
    if (belongs(rank)) {
      ranks.push_back(ranks_in_job_[rank]);
      nodes.push_back(each_a_node ? ranks_in_job_[rank] : nodes_[rank]);
    }
  return World(carrier_, context, std::move(ranks), std::move(nodes));
}

World World::node() const {
  const int own = node_of(rank_);
  return part([&](std::size_t rank) { return nodes_[rank] == own; }, false);
}

World World::across_nodes() const {
  const std::vector<int> ranks = local_ranks();
  return part([&](std::size_t rank) { return ranks[rank] == local_rank_; }, true);
}

World World::apart() const {
  return part([](std::size_t) { return true; }, true);
}

World World::block(int size) const {
  return part([&](std::size_t rank) { return static_cast<int>(rank) / size == rank_ / size; }, false);
}

World World::across_blocks(int size) const {
  return part([&](std::size_t rank) { return static_cast<int>(rank) % size == rank_ % size; }, false);
}

Channel World::channel() const {
  return Channel(carrier_, ranks_in_job_, new_context());
}

Communicator World::communicator() const {
  return carrier_->communicator_of(ranks_in_job_, new_context());
}

// Dissemination barrier: in each round a rank hears from twice as many ranks.
void World::barrier() const {
  for (int distance = 1; distance < size(); distance *= 2) {
    const std::byte own{};
    std::byte news{};
    std::array<MPI_Request, 1> receive, send;
    channel_.start_sending({&own, 1}, (rank_ + distance) % size(), send[0]);
    channel_.start_receiving({&news, 1}, (rank_ - distance + size()) % size(), receive[0]);
    channel_.complete(receive, send);
  }
}

void World::broadcast(std::span<std::byte> bytes) const {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // MPI counts with an int
  for (std::size_t begin = 0; begin < bytes.size(); begin += kMostAtOnce) {
    const std::span<std::byte> piece = bytes.subspan(begin, std::min(kMostAtOnce, bytes.size() - begin));
    if (!root()) channel_.receive(piece, parent(rank_));
    std::vector<MPI_Request> sends;
    for_each_child(rank_, size(),
                   [&](int child, int) { channel_.start_sending(piece, child, sends.emplace_back(MPI_REQUEST_NULL)); });
    channel_.complete({}, sends);
  }
}

// Each rank adds the children's values to its own, in the same order in every call.
template <class T, class Combine>
void World::reduce(std::span<T> values, const Combine& combine) const {
  std::vector<T> others(values.size());
  for_each_child(rank_, size(), [&](int child, int) {
    channel_.receive(std::as_writable_bytes(std::span(others)), child);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = combine(values[i], others[i]);
  });
  if (!root()) channel_.send(std::as_bytes(values), parent(rank_));
  broadcast(std::as_writable_bytes(values));
}

void World::sum(std::span<double> values) const {
  reduce(values, std::plus());
}

void World::sum(std::span<std::int64_t> values) const {
  reduce(values, std::plus());
}

void World::maximum(std::span<double> values) const {
  reduce(values, [](double a, double b) { return std::max(a, b); });
}

void World::minimum(std::span<double> values) const {
  reduce(values, [](double a, double b) { return std::min(a, b); });
}

template <class T>
std::vector<T> World::gather_values(std::span<const T> values) const {
  const std::size_t each = values.size();
  std::vector<T> all(each * ranks_in_job_.size());
  const auto of = [&](int rank, int count) {
    return std::span(all).subspan(static_cast<std::size_t>(rank) * each, static_cast<std::size_t>(count) * each);
  };
  std::ranges::copy(values, of(rank_, 1).begin());
  int count = 1;
  for_each_child(rank_, size(), [&](int child, int ranks) {
    channel_.receive(std::as_writable_bytes(of(child, ranks)), child);
    count += ranks;
  });
  if (!root()) channel_.send(std::as_bytes(of(rank_, count)), parent(rank_));
  broadcast(std::as_writable_bytes(std::span(all)));
  return all;
}

std::vector<std::uint64_t> World::gather(std::uint64_t value) const {
  return gather_values<std::uint64_t>({&value, 1});
}

std::vector<double> World::gather(double value) const {
  return gather({&value, 1});
}

std::vector<double> World::gather(std::span<const double> values) const {
  return gather_values(values);
}

std::vector<std::byte> World::gather(std::span<const std::byte> bytes) const {
  return gather_values(bytes);
}

void World::all_or_none(const std::function<void()>& attempt) const {
  std::string failure;
  try {
    attempt();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::vector<std::uint64_t> sizes = gather(std::uint64_t{failure.size()});
  const auto failed = std::ranges::find_if(sizes, [](std::uint64_t size) { return size > 0; });
  if (failed == sizes.end()) return;
  const auto rank = static_cast<int>(failed - sizes.begin());
  failure.resize(*failed);
  std::vector<std::byte> texts = gather(std::as_bytes(std::span(failure)));
  std::memcpy(failure.data(), texts.data() + static_cast<std::size_t>(rank) * *failed, *failed);
  fail("{}{}", failure, rank_in_job(rank) == 0 ? "" : fmt::format(" (rank {})", rank_in_job(rank)));
}

void World::broadcast(std::string& text) const {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)));
  text.resize(length);
  broadcast(std::as_writable_bytes(std::span(text)));
}

std::vector<std::string> World::gather_texts(const std::string& text) const {
  const std::vector<std::uint64_t> sizes = gather(std::uint64_t{text.size()});
  if (!root()) {
    channel_.send(std::as_bytes(std::span(text)), 0);
    return {};
  }
  std::vector<std::string> texts{text};
  for (int rank = 1; rank < size(); ++rank) {
    std::string& other = texts.emplace_back(sizes[static_cast<std::size_t>(rank)], '\0');
    channel_.receive(std::as_writable_bytes(std::span(other)), rank);
  }
  return texts;
}

}  // namespace annulus
