"""Annulus's all-reduce as a process group of PyTorch, for tensors on CPUs:

    torch.distributed.init_process_group("annulus")

under mpirun, or srun with PMIx. PyTorch finds the backend by this package's entry point, so nothing need be imported.
"""
import atexit
import datetime
import functools
import os
import sys

__all__ = ["doctor", "register", "set_environment"]


# `import torch` imports this module for its launchers, so it imports torch and the extension only when they are needed.
@functools.cache
def extension():
    """The extension, and MPI's end when Python ends."""
    import torch  # whose libraries the extension uses
    from . import _C

    def finalize():
        # After an exception other ranks may wait for this rank, and must not be waited for: the launcher ends them if this
        # process ends without MPI_Finalize.
        if not hasattr(sys, "last_value"):
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
    """MPI may number the processes differently than PyTorch, so the members of a group exchange their numbers."""
    store, size = options.store, options.group_size
    mpi_rank, mpi_size = extension().in_job()
    store.set(f"mpi/{options.group_rank}", str(mpi_rank))
    members = [int(store.get(f"mpi/{rank}")) for rank in range(size)]
    if len(set(members)) < size:
        raise RuntimeError(f"annulus: the process group has {size} ranks, but MPI started {mpi_size}: start the program with "
                           "mpirun or srun, one process for each rank")
    timeout = options.timeout if options.timeout > datetime.timedelta(0) else datetime.timedelta(minutes=30)
    return extension().create(options.group_rank, size, members, timeout)


def doctor(group=None):
    """Returns which all-reduce a group uses, and why."""
    import torch
    group = group or torch.distributed.group.WORLD
    return group._get_backend(torch.device("cpu")).description()


from .launchers import set_environment  # noqa: E402  which uses extension()
