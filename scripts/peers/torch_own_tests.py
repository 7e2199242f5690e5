"""Runs PyTorch's own tests of a process group, as far as its package ships them, over Annulus's:

  scripts/launch -np 4 build/peers/torch/bin/python scripts/peers/torch_own_tests.py [NAME...]

Prints a line for each test that failed or was skipped, with the reason, and the numbers of both.
"""
import collections
import datetime
import os
import pathlib
import sys
import tempfile
import traceback
import unittest

os.environ["BACKEND"] = "annulus"

import annulus_torch
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

annulus_torch.set_environment()
TEMPORARY = pathlib.Path(tempfile.gettempdir()) / f"torch-own-tests-{os.environ['MASTER_PORT']}"
for name in ("barrier", "test_dir", "init_dir"):
    (TEMPORARY / name).mkdir(parents=True, exist_ok=True)
os.environ.update(TEMP_DIR=str(TEMPORARY), INIT_METHOD=f"file://{TEMPORARY}/init_dir/meet")
for feature in ("ddp", "subgroup"):  # which PyTorch's tests grant to its own backends only
    common_distributed.DistTestCases.backend_feature[feature].add("annulus")

from torch.testing._internal.distributed import distributed_test

# In the middle of tests, which know PyTorch's own backends only, and compute on CPUs for this one.
distributed_test.BACKEND = os.environ["BACKEND"] = "mpi"
# These use it as the name of the backend that they create or expect.
BY_NAME = {"test_backend_group", "test_barrier_timeout_global", "test_get_backend"}
SKIPPED = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
LIMIT = datetime.timedelta(seconds=20)
GPU = {"test_batch_isend_irecv_mixed_backend_err", "test_batch_isend_irecv_op_err"}  # which does not show in their names


class Tests(distributed_test.DistributedTest._DistTestBase, common_distributed.TestCase):
    rank, world_size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
    file_name = f"{TEMPORARY}/file"

    control = None  # a process group that no test ends

    def _barrier(self, *_, **__):
        self.control.barrier().wait()


def run(name):
    """Returns (passed, failed or skipped; reason)."""
    test = Tests(name)
    distributed_test.BACKEND = "annulus" if name in BY_NAME else "mpi"
    if not torch.accelerator.is_available() and ("cuda" in name or "nccl" in name or name in GPU):
        return "skipped", "needs a GPU"
    try:
        test.setUp()
        getattr(test, name)()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        return ("skipped", SKIPPED[end.code]) if end.code in SKIPPED else ("passed" if not end.code else "failed", str(end.code))
    except BaseException as error:  # noqa: BLE001: AssertionError, RuntimeError, KeyboardInterrupt of a test
        if os.environ.get("VERBOSE"):
            traceback.print_exc()
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        test.doCleanups()


def main():
    torch.set_num_threads(1)
    rank, size = Tests.rank, int(Tests.world_size)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    control = Tests.control = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(minutes=5))
    counts = collections.Counter()
    names = sys.argv[1:] or [name for name in unittest.TestLoader().getTestCaseNames(Tests)]
    for number, name in enumerate(names):
        control.barrier().wait()
        dist.init_process_group("annulus", store=dist.PrefixStore(f"test{number}", store), rank=rank, world_size=size, timeout=LIMIT)
        result, reason = run(name)
        sys.excepthook = sys.__excepthook__  # each process group replaces it by one that adds a prefix
        results = [[torch.zeros(1, dtype=torch.int64) for _ in range(size)]]
        control.allgather(results, [torch.tensor([{"passed": 0, "skipped": 1, "failed": 2}[result]])]).wait()
        worst = max(int(found) for found in results[0])
        if worst == 2:
            if dist.is_initialized():
                dist.distributed_c10d._abort_process_group()
            if result == "failed":
                print(f"failed {name} on rank {rank}: {reason}", flush=True)
        if dist.is_initialized():  # some tests end it themselves
            dist.destroy_process_group()
        if rank == 0:
            counts[("passed", "skipped", "failed")[worst]] += 1
            if worst == 1:
                print(f"skipped {name}: {reason}", flush=True)
    control.barrier().wait()
    if rank == 0:
        print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())), flush=True)


main()
