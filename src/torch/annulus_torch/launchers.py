"""The rendezvous of processes that were started by mpirun or srun instead of torchrun.

torch.distributed.init_process_group() reads torchrun's variables, which these launchers do not set. MPI knows the ranks, and
rank 0's store listens at a free port, whose number MPI sends to the other ranks."""
import contextlib
import importlib
import os
import socket
import sys
import threading

from . import extension

MPI_RUN_ID = "mpi"  # instead of torchrun's
# The variables by which Open MPI, MPICH and Intel MPI, and Slurm show that they started this process.
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def started_by_mpi():
    """Not for processes of a torchrun that MPI has started. set_environment() uses its variable, too."""
    by_torchrun = os.environ.get("TORCHELASTIC_RUN_ID", MPI_RUN_ID) != MPI_RUN_ID
    return not by_torchrun and any(name in os.environ for name in LAUNCHERS)


@contextlib.contextmanager
def limit(timeout):
    """Ends this process if calls of MPI that wait for other ranks take longer: they cannot be left."""
    def end():
        rank = next((os.environ[name] for name in LAUNCHERS if name in os.environ), "?")
        print(f"annulus: rank {rank} on {socket.gethostname()}: the start of the process group took longer than "
              f"{timeout.total_seconds():g} s: a rank has not called init_process_group(), or has ended", file=sys.stderr, flush=True)
        os._exit(1)
    timer = threading.Timer(timeout.total_seconds(), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def register_rendezvous():
    """Called by `import torch`. Replaces env:// if MPI started this process and torchrun's variables are missing."""
    if not started_by_mpi():
        return
    # By name, because the package has a function of the same name.
    handlers = getattr(importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    by_environment = handlers.get("env")
    if by_environment is None:  # another version of PyTorch, which has no torch.distributed
        return
    found = {}  # what by_mpi() has put into the environment

    def by_launcher(url, timeout=None, **options):
        if "rank=" in url or os.environ.get("RANK", found.get("RANK")) != found.get("RANK"):
            yield from by_environment(url, timeout=timeout, **options)
        else:
            store, rank, size = by_mpi(timeout)
            found["RANK"] = os.environ["RANK"]
            yield store, rank, size
    handlers["env"] = by_launcher


def by_mpi(timeout):
    """The store, this process's rank, and the number of ranks."""
    from torch.distributed import TCPStore
    from torch.distributed.rendezvous import default_pg_timeout
    timeout = timeout or default_pg_timeout
    with limit(timeout):
        rank, size = extension().place_in_job()
        store = TCPStore(socket.gethostname(), 0, size, True, timeout, wait_for_workers=False) if rank == 0 else None
        host, port = publish(store.host if store else "", store.port if store else 0)
    return store or TCPStore(host, port, size, False, timeout, wait_for_workers=False), rank, size


def publish(host, port):
    """Sets the variables that torchrun sets, with rank 0's host and port, and returns these."""
    (rank, size), (local_rank, local_size) = extension().place_in_job(), extension().place_on_node()
    host, port = extension().broadcast(f"{host} {port}").split()
    for name, value in (("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", local_size),
                        ("MASTER_ADDR", host), ("MASTER_PORT", port)):
        os.environ.setdefault(name, str(value))
    return host, int(port)


def set_environment():
    """Sets the variables that torchrun sets. For libraries that read them before init_process_group(), such as Lightning and
    Hugging Face's Trainer. Collective over all ranks."""
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("", 0))
        publish(socket.gethostname(), free.getsockname()[1])
    os.environ.setdefault("TORCHELASTIC_RUN_ID", MPI_RUN_ID)  # by which Lightning recognizes torchrun
