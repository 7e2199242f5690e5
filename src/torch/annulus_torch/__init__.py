"""Annulus's all-reduce as a process group of PyTorch, for tensors on CPUs:

    torch.distributed.init_process_group("annulus")

under mpirun, srun with PMIx, or on one node torchrun. PyTorch finds the backend by this package's entry point, so nothing
need be imported.
"""
import atexit
import datetime
import functools
import os
import sys

__all__ = ["Shards", "doctor", "register", "set_environment"]


# `import torch` imports this module for its launchers, so it imports torch and the extension only when they are needed.
@functools.cache
def extension():
    """The extension, and MPI's end when Python ends."""
    import torch  # whose libraries the extension uses
    from . import _C

    def finalize():
        # After an exception other ranks may wait for this rank, and must not be waited for: the launcher ends them if this
        # process ends without MPI_Finalize.
        error = getattr(sys, "last_value", None)
        _C.leave_all("the program has ended" if error is None else f"{type(error).__name__}: {error}".splitlines()[0])
        if error is None:
            _C.finalize()
    atexit.register(finalize)
    return _C


def register():
    """Registers the backend; PyTorch calls it when "annulus" is first used."""
    import torch.distributed as dist
    # Lets DistributedDataParallel allocate buckets in memory that a node's ranks share, so nothing is copied.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    if "ANNULUS" not in dist.Backend._plugins:
        dist.Backend.register_backend("annulus", _create, extended_api=True, devices=["cpu"])


def _create(options, _):
    store, rank, size = options.store, options.group_rank, options.group_size
    timeout = options.timeout if options.timeout > datetime.timedelta(0) else datetime.timedelta(minutes=30)
    create = _create_by_mpi if started_by_mpi() else _create_on_node
    return create(store, rank, size, timeout)


def _create_by_mpi(store, rank, size, timeout):
    """MPI may number the processes differently than PyTorch, so the members of a group exchange their numbers."""
    with limit(timeout):
        mpi_rank, mpi_size = extension().place_in_job()
    members = _exchange(store, rank, size, str(mpi_rank), timeout)
    if len(set(members)) < size:
        raise RuntimeError(f"annulus: the process group has {size} ranks, but MPI started {mpi_size}: start the program with "
                           "mpirun or srun, one process for each rank")
    with limit(timeout):
        return extension().by_mpi(rank, size, [int(member) for member in members], timeout)


def _create_on_node(store, rank, size, timeout):
    """Processes of torchrun, or of multiprocessing. Gloo has the operations that mpirun's processes leave to MPI."""
    from torch.distributed import PrefixStore, ProcessGroupGloo
    _exchange(store, rank, size, "", timeout)
    group = extension().on_node(rank, size, store, timeout)
    options = ProcessGroupGloo._Options()
    options._devices, options._timeout = [ProcessGroupGloo.create_device(interface="lo")], timeout
    group.use(ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options))
    return group


def _exchange(store, rank, size, text, timeout):
    """Returns all ranks' texts."""
    store.set(f"annulus/{rank}", text)
    for other in range(size):
        try:
            store.wait([f"annulus/{other}"], timeout)
        except RuntimeError as error:
            raise RuntimeError(f"annulus: rank {other} has not called init_process_group() or new_group() within "
                               f"{timeout.total_seconds():g} s: {str(error).splitlines()[0]}") from None
    return [store.get(f"annulus/{other}").decode() for other in range(size)]


def doctor(group=None):
    """Returns which all-reduce a group uses, and why."""
    import torch
    group = group or torch.distributed.group.WORLD
    return group._get_backend(torch.device("cpu")).description()


from .launchers import limit, set_environment, started_by_mpi  # noqa: E402  which use extension()
from .shards import Shards  # noqa: E402
