// Annulus' collective operations for other programs: C99, and nothing but MPI is needed. collectives/README.md has an
// overview, collectives/example.c a program.
#ifndef ANNULUS_COLLECTIVES_H
#define ANNULUS_COLLECTIVES_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Every status from ANNULUS_MISMATCH on ends the group: running and later calls fail with the same status, on all ranks
// of the node immediately, on ranks of other nodes when they time out.
typedef enum annulus_status {
  ANNULUS_OK,
  ANNULUS_PENDING,   // not complete yet
  ANNULUS_INVALID,   // an argument is wrong, and nothing was done
  ANNULUS_MISMATCH,  // the ranks called different operations
  ANNULUS_TIMEOUT,   // no progress for the group's timeout: a rank is frozen, or does not call
  ANNULUS_LOST,      // a rank's process has ended
  ANNULUS_ABORTED,   // annulus_abort()
  ANNULUS_FAILED     // anything else
} annulus_status;

typedef enum annulus_type {
  ANNULUS_FLOAT32,
  ANNULUS_FLOAT64,
  ANNULUS_FLOAT16,
  ANNULUS_BFLOAT16,
  ANNULUS_INT32,
  ANNULUS_INT64,
  ANNULUS_UINT8
} annulus_type;

// FLOAT16 and BFLOAT16 are computed in float32 and rounded once. Sums of integers wrap around, and have no average.
typedef enum annulus_operation { ANNULUS_SUM, ANNULUS_MIN, ANNULUS_MAX, ANNULUS_AVERAGE } annulus_operation;

// Ranks that call collective operations together. All functions are thread-safe, except that nothing may run during
// annulus_group_finish(). A process may have several groups.
typedef struct annulus_group annulus_group;

typedef struct annulus_options {
  double timeout_seconds;  // without progress, after which a group ends; 0: 300
  int ranks_per_node;      // for tests: as if so few neighbouring ranks shared a node; 0: all that do
} annulus_options;

// Passes `bytes` bytes from each rank to all ranks, in rank order. Returns 0, or anything else for a failure.
typedef int (*annulus_exchange)(void* data, const void* own, size_t bytes, void* all);

typedef uint64_t annulus_work;  // a started operation; 1, 2, ... in the order of the calls

// How to report an operation's end; all zero for none.
typedef struct annulus_completion {
  // Called once, by this library's thread or within annulus_wait(), before the operation counts as complete. It may
  // start operations, but not wait for any.
  void (*done)(void* data, annulus_status status);
  void* data;
  int waited_for;  // not 0: this thread calls annulus_wait() next, and the operation may begin as late as then
} annulus_completion;

// Creates a group of the ranks of `communicator`, which may be freed afterwards, or of MPI_COMM_WORLD (null).
// Initializes MPI if nobody has, and then finalizes it when the process exits, unless a group failed. MPI must provide
// MPI_THREAD_MULTIPLE. `options`: null for the defaults. Collective, and the timeout limits the whole start. After a
// failure the group has only an error text, and must be finished.
annulus_status annulus_group_start(const MPI_Comm* communicator, const annulus_options* options, annulus_group** group);
// The same without MPI, for processes on one node that another launcher started. `exchange` is called several times
// within this function.
annulus_status annulus_group_start_on_node(int rank, int size, annulus_exchange exchange, void* data,
                                           const annulus_options* options, annulus_group** group);
// Completes all operations and frees the group and its memory. Collective, unless the group has ended.
annulus_status annulus_group_finish(annulus_group* group);
// Ends the group; never blocks.
annulus_status annulus_abort(annulus_group* group);
// Announces that this rank starts no more operations, because the process ends: later operations on the node's other
// ranks end with ANNULUS_LOST, and name the rank and `reason`. Never blocks.
annulus_status annulus_leave(annulus_group* group, const char* reason);

int annulus_rank(const annulus_group* group);
int annulus_size(const annulus_group* group);
const char* annulus_description(const annulus_group* group);  // the algorithm and the reason for it
// Why the group ended, else the last ANNULUS_INVALID. Both texts are valid until the group is finished.
const char* annulus_error_text(const annulus_group* group);

// Allocates memory that operations need not copy from and to: a node's ranks share it. Collective, in the same order on
// all ranks, with the same size; at any time, also while operations run. Contents are zero.
annulus_status annulus_allocate(annulus_group* group, size_t bytes, void** memory);
// Keeps the memory for later allocations of about the same size, which use it once all ranks have freed theirs. Not
// collective. REQUIRES: operations on it are complete.
annulus_status annulus_free(annulus_group* group, void* memory);

// Operations on arrays anywhere in memory, aligned to their elements. Each returns immediately, and the arrays belong
// to it until it is complete. REQUIRES: all ranks start the same operations in the same order. The smaller
// array may be this rank's part of the larger; else `send` and `receive` are equal or do not overlap. `completion` and
// `work` may be null.
annulus_status annulus_all_reduce(annulus_group* group, const void* send, void* receive, size_t count,
                                  annulus_type type, annulus_operation operation, const annulus_completion* completion,
                                  annulus_work* work);
// `send` has `count` elements for each rank; rank r receives part r.
annulus_status annulus_reduce_scatter(annulus_group* group, const void* send, void* receive, size_t count,
                                      annulus_type type, annulus_operation operation,
                                      const annulus_completion* completion, annulus_work* work);
// `receive` has the `count` elements of each rank, in rank order.
annulus_status annulus_all_gather(annulus_group* group, const void* send, void* receive, size_t count,
                                  annulus_type type, const annulus_completion* completion, annulus_work* work);
annulus_status annulus_broadcast(annulus_group* group, void* data, size_t count, annulus_type type, int root,
                                 const annulus_completion* completion, annulus_work* work);
annulus_status annulus_barrier(annulus_group* group, const annulus_completion* completion, annulus_work* work);

// Returns when the operation is complete or the group has ended, or, with ANNULUS_PENDING, after `seconds` (0: never).
annulus_status annulus_wait(annulus_group* group, annulus_work work, double seconds);
annulus_status annulus_test(annulus_group* group, annulus_work work);

#ifdef __cplusplus
}
#endif

#endif
