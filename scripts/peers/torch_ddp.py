#!/usr/bin/python3
"""Training images/s of PyTorch on the CPU; of several ranks with DistributedDataParallel over gloo.

  torch_ddp.py MODEL BATCH [--ranks 2] [--threads 1] [--seconds 2] [--settings TEXT]

A step is what it is in training: forward, cross-entropy, backward with its all-reduce, SGD with momentum 0.9, on a batch
that lies ready. The settings that matter on a CPU are tried one after the other, each in processes of its own, and the
fastest is measured; or the given ones are, as this program names them. Prints one line of JSON. The peak of memory is
the largest rank's.
"""
import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time

if __name__ != "__mp_main__":  # ranks inherit it
    THREADS = re.search(r"--threads[= ](\d+)", " ".join(sys.argv))
    # Before torch: Debian's PyTorch calls an OpenBLAS with threads of its own, which ignores torch.set_num_threads.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), THREADS.group(1) if THREADS else "1"))

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn import functional


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity() if channels_in == channels else nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return functional.relu(y, inplace=True)


def resnet20():
    blocks = [BasicBlock(channels_in, channels, stride) for channels_in, channels, stride in
              ((16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1),
               (64, 64, 1))]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def from_torchvision(name):
    def make():
        import torchvision
        return getattr(torchvision.models, name)()
    return make


MODELS = {"lenet": lenet, "cnn": cnn, "resnet20": resnet20, "resnet18": from_torchvision("resnet18"),
          "resnet50": from_torchvision("resnet50")}
# Channels, height, width; and classes.
INPUTS = {"lenet": ((1, 28, 28), 10), "cnn": ((1, 28, 28), 10), "resnet20": ((3, 32, 32), 10),
          "resnet18": ((3, 224, 224), 1000), "resnet50": ((3, 224, 224), 1000)}

FORMATS = {"NCHW": torch.contiguous_format, "channels last": torch.channels_last}
BUCKETS_MIB = {"25 MiB buckets": 25, "1 MiB buckets": 1, "one bucket": 100000}
PINS = {"unpinned": False, "pinned": True}  # every rank on one core, and gloo's threads with it


def choices(ranks, threads):
    """Of each setting what there is to choose from; the first is the usual one."""
    several = [BUCKETS_MIB] if ranks > 1 else []
    return [list(names) for names in [FORMATS, *several, *([PINS] if ranks > 1 and threads == 1 else [])]]


def make_step(options, settings):
    torch.manual_seed(1)
    layout = FORMATS[settings[0]]
    network = MODELS[options.model]().to(memory_format=layout).train()
    shape, classes = INPUTS[options.model]
    images = torch.randn(options.batch, *shape).to(memory_format=layout)
    labels = torch.randint(0, classes, (options.batch,))
    if options.ranks > 1:
        network = nn.parallel.DistributedDataParallel(
            network, bucket_cap_mb=BUCKETS_MIB[settings[1]], broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(network(images), labels).backward()
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
    timed(1)
    once = timed(1)
    if once < 0.5:
        timed(min(10, round(0.5 / once)))
        once = timed(1)
    group = max(1, round(0.1 / once))  # the same on every rank: the maximum was agreed on
    return [timed(group) for _ in range(max(3, round(seconds / max(0.1, once))))]


def peak_memory_bytes():
    """Of this process; getrusage's begins with its parent's."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def rank_main(rank, options, settings, seconds, folder):
    if PINS.get(settings[-1], False):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=options.ranks)
    median = statistics.median(measure(make_step(options, settings), seconds))
    memory = torch.tensor([peak_memory_bytes()])
    dist.all_reduce(memory, dist.ReduceOp.MAX)
    if rank == 0:
        with open(f"{folder}/result", "w") as file:
            json.dump({"median_seconds": median, "peak_memory_bytes": memory.item()}, file)
    dist.barrier()


def run(options, settings, seconds):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (options, settings, seconds, folder), options.ranks)
        with open(f"{folder}/result") as file:
            return json.load(file)


def fastest_settings(options):
    """One setting after the other: there are too many combinations of slow steps."""
    best = [names[0] for names in choices(options.ranks, options.threads)]
    seconds = {}
    for place, names in enumerate(choices(options.ranks, options.threads)):
        for name in names:
            tried = (*best[:place], name, *best[place + 1:])
            if tried not in seconds:
                seconds[tried] = run(options, tried, 0.5)["median_seconds"]
        best = list(min(seconds, key=seconds.get))
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--settings", help="such as 'channels last, 25 MiB buckets, pinned'")
    options = parser.parse_args()
    settings = options.settings.split(", ") if options.settings else fastest_settings(options)
    known = choices(options.ranks, options.threads)
    if len(settings) != len(known) or any(name not in names for name, names in zip(settings, known)):
        sys.exit(f"torch_ddp: --settings takes one of each of {known}")
    result = run(options, settings, options.seconds)
    print(json.dumps({
        "model": options.model, "batch": options.batch, "ranks": options.ranks, "threads": options.threads, **result,
        "images_per_second": options.batch * options.ranks / result["median_seconds"], "settings": ", ".join(settings),
        "version": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
