#include "collectives/annulus_collectives.h"

#include <fmt/format.h>
#include <unistd.h>
#include <cstdlib>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>

#include "collectives/library/group.h"
#include "collectives/library/node_carrier.h"
#include "collectives/library/start_limit.h"
#include "collectives/world/mpi.h"
#include "kernels/base/error.h"

using annulus::Call;
using annulus::Group;

// A group, or why it was not created; and the texts that were returned to the caller.
struct annulus_group {
  std::unique_ptr<Group> group;
  annulus::Failure failure;  // of the start
  bool uses_mpi = false;

  mutable std::mutex mutex;  // guards what follows
  std::string invalid;
  mutable std::set<std::string> texts;  // a set, so addresses do not change

  const char* keep(const std::string& text) const {
    const std::scoped_lock lock(mutex);
    return texts.insert(text).first->c_str();
  }
};

namespace {

constexpr double kTimeoutSeconds = 300;

// Open MPI polls its sockets only in every 10,000th call that finds nothing to do. The group's thread sleeps between
// calls, so that a large message would take minutes.
bool poll_sockets_in_every_call() {
  return setenv("OMPI_MCA_mpi_event_tick_rate", "1", 0) == 0;
}

// MPI can be initialized only once, so it ends with the process. If a group failed, other ranks may not come to the
// end, and the launcher ends the job when it sees that MPI was not finalized.
class ProcessMpi {
 public:
  ~ProcessMpi() {
    if (unfinished_ > 0 || getpid() != process_) session_.leave_open();
  }
  void count(int groups) { unfinished_ += groups; }

 private:
  const bool polls_ = poll_sockets_in_every_call();  // before MPI is initialized
  annulus::MpiSession session_;
  const pid_t process_ = getpid();  // not a child that it has forked
  std::atomic<int> unfinished_ = 0;
};

ProcessMpi& process_mpi() {
  static ProcessMpi mpi;
  return mpi;
}

annulus_status invalid(annulus_group* group, const std::string& text) {
  const std::scoped_lock lock(group->mutex);
  group->invalid = text;
  return ANNULUS_INVALID;
}

// Runs `body` and turns exceptions into codes. If the group has ended, the reason is the group's.
template <class Body>
annulus_status guarded(annulus_group* group, const Body& body) {
  if (group == nullptr) return ANNULUS_INVALID;
  if (!group->group) return group->failure.status;
  try {
    return body(*group->group);
  } catch (const std::exception& error) {
    group->group->fail({ANNULUS_FAILED, error.what()});
    return group->group->failure()->status;
  }
}

// Destroys the group without the collective calls that its members' destructors make unless an exception propagates.
void destroy_alone(std::unique_ptr<Group> group) {
  struct Leaving {};
  try {
    const std::unique_ptr<Group> left = std::move(group);
    throw Leaving();
  } catch (const Leaving&) {
  }
}

// Makes a group by make(timeout_seconds).
template <class Make>
annulus_status create(annulus_group** group, const annulus_options* options, const Make& make) {
  if (group == nullptr) return ANNULUS_INVALID;
  *group = new (std::nothrow) annulus_group;
  if (*group == nullptr) return ANNULUS_FAILED;
  annulus::Failure& failure = (*group)->failure;
  try {
    const bool given = options != nullptr && options->timeout_seconds > 0;
    (*group)->group = make(given ? options->timeout_seconds : kTimeoutSeconds);
  } catch (const annulus::StartTimeout& error) {
    failure = {ANNULUS_TIMEOUT, error.what()};
  } catch (const std::exception& error) {
    failure = {ANNULUS_FAILED, error.what()};
  }
  return failure.status;
}

std::string wrong_arguments(const annulus_group& group, const Call& call) {
  using namespace annulus;
  const bool reduces = call.kind == Call::Kind::all_reduce || call.kind == Call::Kind::reduce_scatter;
  if (call.reduction.type > ElementType::uint8) return "unknown element type";
  if (call.reduction.operation > ReduceOperation::average) return "unknown operation";
  if (reduces) try {
      expect_possible(call.reduction);
    } catch (const Error& error) {
      return error.what();
    }
  if (call.root < 0 || call.root >= group.group->size())
    return fmt::format("there is no rank {} among {}", call.root, group.group->size());
  if (call.count > 0 && (call.send == nullptr || call.receive == nullptr)) return "an array is null";
  const std::size_t element = call.element_bytes();
  for (const void* array : {static_cast<const void*>(call.send), static_cast<const void*>(call.receive)})
    if (reinterpret_cast<std::uintptr_t>(array) % element != 0) return "an array is not aligned to its elements";
  if (call.count > PTRDIFF_MAX / element / static_cast<std::size_t>(group.group->size()))
    return "the count is too large";
  return "";
}

annulus_status start(annulus_group* group, const Call& call, const annulus_completion* completion, annulus_work* work) {
  return guarded(group, [&](Group& started) {
    const std::string wrong = wrong_arguments(*group, call);
    if (!wrong.empty()) return invalid(group, fmt::format("{}: {}", name_of(call.kind), wrong));
    annulus_work unused = 0;
    return started.start(call, completion != nullptr ? *completion : annulus_completion{},
                         work != nullptr ? *work : unused);
  });
}

Call call_of(Call::Kind kind, const void* send, void* receive, std::size_t count, annulus_type type,
             annulus_operation operation = ANNULUS_SUM, int root = 0) {
  return {.kind = kind,
          .reduction = {static_cast<annulus::ElementType>(type), static_cast<annulus::ReduceOperation>(operation)},
          .count = count,
          .root = root,
          .send = static_cast<const std::byte*>(send),
          .receive = static_cast<std::byte*>(receive)};
}

}  // namespace

annulus_status annulus_group_start(const MPI_Comm* communicator, const annulus_options* options,
                                   annulus_group** group) {
  return create(group, options, [&](double timeout_seconds) {
    process_mpi().count(1);
    (*group)->uses_mpi = true;
    const MPI_Comm ranks = communicator != nullptr ? *communicator : MPI_COMM_WORLD;
    annulus::expect_all_ranks(ranks, timeout_seconds);
    return std::make_unique<Group>(annulus::World(options != nullptr ? options->ranks_per_node : 0, ranks),
                                   annulus::make_call_algorithm, timeout_seconds);
  });
}

annulus_status annulus_group_start_on_node(int rank, int size, annulus_exchange exchange, void* data,
                                           const annulus_options* options, annulus_group** group) {
  if (rank < 0 || rank >= size || exchange == nullptr) return ANNULUS_INVALID;
  return create(group, options, [&](double timeout_seconds) {
    const auto carrier = std::make_shared<annulus::NodeCarrier>(
        rank, size, [&](std::span<const std::byte> own, std::span<std::byte> all) {
          if (exchange(data, own.data(), own.size(), all.data()) != 0)
            annulus::fail("the exchange of the start failed");
        });
    return std::make_unique<Group>(annulus::World(carrier), annulus::make_node_call_algorithm, timeout_seconds);
  });
}

annulus_status annulus_group_finish(annulus_group* group) {
  if (group == nullptr) return ANNULUS_OK;
  const std::unique_ptr<annulus_group> owned(group);
  const annulus_status status = guarded(group, [](Group& finished) { return finished.finish(); });
  if (status != ANNULUS_OK && group->group)
    destroy_alone(std::move(group->group));
  else if (status == ANNULUS_OK && group->uses_mpi)
    process_mpi().count(-1);
  return status;
}

annulus_status annulus_abort(annulus_group* group) {
  return guarded(group, [](Group& aborted) {
    aborted.fail({ANNULUS_ABORTED, fmt::format("rank {} aborted", aborted.rank())});
    return ANNULUS_OK;
  });
}

annulus_status annulus_leave(annulus_group* group, const char* reason) {
  return guarded(group, [&](Group& left) {
    left.leave(reason != nullptr ? reason : "");
    return ANNULUS_OK;
  });
}

int annulus_rank(const annulus_group* group) {
  return group != nullptr && group->group ? group->group->rank() : -1;
}

int annulus_size(const annulus_group* group) {
  return group != nullptr && group->group ? group->group->size() : 0;
}

const char* annulus_description(const annulus_group* group) {
  return group != nullptr && group->group ? group->group->description().c_str() : "";
}

const char* annulus_error_text(const annulus_group* group) {
  if (group == nullptr) return "there is no group";
  if (!group->group) return group->failure.text.c_str();
  if (const auto failure = group->group->failure()) return group->keep(failure->text);
  std::string text;
  {
    const std::scoped_lock lock(group->mutex);
    text = group->invalid;
  }
  return group->keep(text);
}

annulus_status annulus_allocate(annulus_group* group, size_t bytes, void** memory) {
  return guarded(group, [&](Group& allocating) {
    if (memory == nullptr || bytes > PTRDIFF_MAX) return invalid(group, "allocate: the size is too large");
    if (const auto failure = allocating.failure()) return failure->status;
    *memory = allocating.allocate(bytes);
    return ANNULUS_OK;
  });
}

annulus_status annulus_free(annulus_group* group, void* memory) {
  return guarded(group, [&](Group& owner) {
    if (memory == nullptr || owner.free(static_cast<std::byte*>(memory))) return ANNULUS_OK;
    return invalid(group, "free: the group has not allocated this memory");
  });
}

annulus_status annulus_all_reduce(annulus_group* group, const void* send, void* receive, size_t count,
                                  annulus_type type, annulus_operation operation, const annulus_completion* completion,
                                  annulus_work* work) {
  return start(group, call_of(Call::Kind::all_reduce, send, receive, count, type, operation), completion, work);
}

annulus_status annulus_reduce_scatter(annulus_group* group, const void* send, void* receive, size_t count,
                                      annulus_type type, annulus_operation operation,
                                      const annulus_completion* completion, annulus_work* work) {
  return start(group, call_of(Call::Kind::reduce_scatter, send, receive, count, type, operation), completion, work);
}

annulus_status annulus_all_gather(annulus_group* group, const void* send, void* receive, size_t count,
                                  annulus_type type, const annulus_completion* completion, annulus_work* work) {
  return start(group, call_of(Call::Kind::all_gather, send, receive, count, type), completion, work);
}

annulus_status annulus_broadcast(annulus_group* group, void* data, size_t count, annulus_type type, int root,
                                 const annulus_completion* completion, annulus_work* work) {
  return start(group, call_of(Call::Kind::broadcast, data, data, count, type, ANNULUS_SUM, root), completion, work);
}

annulus_status annulus_barrier(annulus_group* group, const annulus_completion* completion, annulus_work* work) {
  return start(group, Call{}, completion, work);
}

annulus_status annulus_wait(annulus_group* group, annulus_work work, double seconds) {
  return guarded(group, [&](Group& waiting) {
    return waiting.started(work) ? waiting.wait(work, seconds) : invalid(group, "wait: no such operation was started");
  });
}

annulus_status annulus_test(annulus_group* group, annulus_work work) {
  return guarded(group, [&](Group& tested) {
    return tested.started(work) ? tested.test(work) : invalid(group, "test: no such operation was started");
  });
}
