#!/usr/bin/python3
"""PyTorch's all_reduce over gloo, which DistributedDataParallel uses on CPUs and for ranks that share a GPU.

  all_reduce_torch.py NAME BYTES,BYTES,... SECONDS RANKS [cuda]      arguments and rows: see all_reduce_peer.h

With `cuda` the arrays are in GPU memory, on the same GPU for all ranks: gloo copies them to the host and back.
"""
import ctypes
import json
import mmap
import os
import signal
import statistics
import sys
import tempfile
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import torch
import torch.distributed as dist
import torch.multiprocessing

FEWEST_CALLS, MOST_CALLS = 3, 2000
HUGE_PAGE = 2 << 20


def huge_buffer(size):
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    skip = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    return torch.frombuffer(memory, dtype=torch.float32, count=size // 4, offset=skip).zero_()


def allocate(size, device):
    return huge_buffer(size) if device == "cpu" else torch.zeros(size // 4, device=device)


def check_exactness(values, rank, ranks, group=None):
    pattern = (torch.arange(len(values), dtype=torch.int32, device=values.device) % 1021).to(torch.float32)
    values.copy_(pattern).add_(rank)
    dist.all_reduce(values, group=group)
    if not torch.equal(values, pattern.mul_(ranks).add_(ranks * (ranks - 1) // 2)):
        sys.exit("wrong sum")


def maximum(value):
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.item()


def common_start():
    if dist.get_world_size() > os.cpu_count():
        dist.barrier()
        return time.perf_counter()
    begin = maximum(time.perf_counter() + 500e-6)  # by then every rank has left `maximum`
    while time.perf_counter() < begin:
        pass
    return begin


def time_call(values, group=None):
    values.zero_()  # rewritten before each call, untimed, as training does
    if values.is_cuda:
        torch.cuda.synchronize()
    begin = common_start()
    dist.all_reduce(values, group=group)
    if values.is_cuda:
        torch.cuda.synchronize()
    return maximum(time.perf_counter() - begin)


def rank_main(rank, name, sizes, seconds, ranks, device, folder):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with its parent
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    buffer = allocate(max(sizes), device)
    for size in sizes:
        values = buffer[:size // 4]
        check_exactness(values, rank, ranks)
        times = []
        while len(times) < MOST_CALLS and (len(times) < FEWEST_CALLS or sum(times) < seconds):
            times.append(time_call(values))
        if rank == 0:
            print(json.dumps({"algorithm": name, "bytes": size, "ranks": ranks, "iterations": len(times),
                              "median_seconds": statistics.median(times), "min_seconds": min(times)}), flush=True)
    dist.barrier()
    os._exit(0)  # an orderly shutdown of gloo is not measured, and sometimes fails


if __name__ == "__main__":
    name, sizes, seconds, ranks, *device = sys.argv[1:]
    sizes = [int(size) for size in sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (name, sizes, float(seconds), int(ranks), *(device or ["cpu"]), folder),
                                    int(ranks))
