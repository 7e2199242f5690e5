#!/usr/bin/python3
"""Training images/s of PyTorch with DistributedDataParallel over gloo, one thread a rank, on the CPU.

  torch_ddp.py MODEL BATCH [--ranks 2] [--seconds 2] [--pin]

A step is what it is in training: forward, cross-entropy, backward with its all-reduce, SGD with momentum 0.9, on a batch that
lies ready. The settings that matter on a CPU are tried first and the fastest is measured. With --pin every rank stays on
one core, gloo's threads with it. Prints one line of JSON.
"""
import argparse
import itertools
import json
import os
import statistics
import tempfile
import time

# Before torch: Debian's PyTorch calls an OpenBLAS with threads of its own, which ignores torch.set_num_threads.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


MODELS = {"lenet": lenet, "cnn": cnn}
BUCKETS_MIB = {"25 MiB buckets": 25, "1 MiB buckets": 1, "one bucket": 100000}
FORMATS = {"NCHW": torch.contiguous_format, "channels last": torch.channels_last}


def make_step(model, batch, bucket, layout):
    torch.manual_seed(1)
    network = MODELS[model]().to(memory_format=FORMATS[layout])
    images = torch.randn(batch, 1, 28, 28).to(memory_format=FORMATS[layout])
    labels = torch.randint(0, 10, (batch,))
    parallel = nn.parallel.DistributedDataParallel(
        network, bucket_cap_mb=BUCKETS_MIB[bucket], broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(parallel(images), labels).backward()
        optimizer.step()
    return step


def measure(step, seconds):
    """Seconds of a step, the slowest rank's, of groups of steps of about 0.1 s."""
    def timed(count):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        took = torch.tensor([(time.perf_counter() - begin) / count])
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return took.item()
    timed(10)
    group = max(1, round(0.1 / timed(10)))  # the same on every rank: the maximum was agreed on
    return [timed(group) for _ in range(max(5, round(seconds / 0.1)))]


def rank_main(rank, options, folder):
    if options.pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=options.ranks)
    steps = {s: make_step(options.model, options.batch, *s) for s in itertools.product(BUCKETS_MIB, FORMATS)}
    tried = {s: statistics.median(measure(step, 0.5)) for s, step in steps.items()}
    best = min(tried, key=tried.get)  # the same on every rank
    median = statistics.median(measure(steps[best], options.seconds))
    if rank == 0:
        print(json.dumps({
            "model": options.model, "batch": options.batch, "ranks": options.ranks, "median_seconds": median,
            "images_per_second": options.batch * options.ranks / median,
            "settings": ", ".join(best) + (", pinned" if options.pin else ""), "version": torch.__version__}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (options, folder), options.ranks)
