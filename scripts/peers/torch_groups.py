"""A rank of `scripts/bench ddp`, under mpirun: PyTorch over Annulus's process group and over gloo.

  torch_groups.py all-reduce BYTES,BYTES,... SECONDS            all-reduces over both, in turns
  torch_groups.py step MODEL BATCH SECONDS annulus|gloo|hook|none
                        steps of DistributedDataParallel; hook: with one that reduces nothing; none: without any of it

Rank 0 prints a line of JSON for each result.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import torch_ddp
from all_reduce_torch import check_exactness, huge_buffer, time_call
from step_rank import GPTS, INPUTS, LEARNING_RATE, MOMENTUM, samples

FEWEST, MOST = 10, 2000
WARM_UP = 3


def answer(**row):
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)


def common(value):
    """The largest of all ranks' values."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def all_reduces(sizes, seconds):
    groups = {"annulus": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    own = backend.allocate_tensor(max(sizes) // 4, dtype=torch.float32, device=torch.device("cpu"))
    elsewhere = huge_buffer(max(sizes))
    kinds = {"annulus, its memory": ("annulus", own), "annulus, any memory": ("annulus", elsewhere), "gloo": ("gloo", elsewhere)}
    for size in sizes:
        times = {kind: [] for kind in kinds}
        for kind, (group, buffer) in kinds.items():
            check_exactness(buffer[:size // 4], dist.get_rank(), dist.get_world_size(), groups[group])
        turns, spent = 0, 0
        while turns < FEWEST or turns < MOST and spent < seconds:
            for kind, (group, buffer) in kinds.items():
                times[kind].append(time_call(buffer[:size // 4], groups[group]))
            turns += 1
            spent = sum(map(sum, times.values()))  # times are the slowest rank's, the same on all ranks
        answer(bytes=size, turns=turns, seconds={kind: statistics.median(found) for kind, found in times.items()})


def mlp():
    return nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def reduce_nothing(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def make_step(model, batch, group, hook):
    torch.manual_seed(1)

    def distributed(network):
        if group is None:
            return network
        found = nn.parallel.DistributedDataParallel(network, process_group=group, gradient_as_bucket_view=True)
        if hook is not None:
            found.register_comm_hook(None, hook)
        return found
    if model in GPTS:
        length = samples(model)
        network = distributed(torch_ddp.Gpt(length, *GPTS[model]).train())
        inputs = (torch.randint(0, GPTS[model][0], (batch, length + 1)),)
        loss = network
    else:
        shape, classes = ((2048,), 10) if model == "mlp" else INPUTS[model]
        layout = torch.contiguous_format if model == "mlp" else torch.channels_last
        network = distributed((mlp() if model == "mlp" else torch_ddp.make_network(model)).to(memory_format=layout).train())
        inputs = torch.randn(batch, *shape).to(memory_format=layout), torch.randint(0, classes, (batch,))

        def loss(images, labels):
            return nn.functional.cross_entropy(network(images), labels)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(*inputs).backward()
        optimizer.step()
    return step


def steps(model, batch, seconds, name):
    groups = {"annulus": lambda: dist.group.WORLD, "gloo": lambda: dist.new_group(backend="gloo"),
              "hook": lambda: dist.group.WORLD, "none": lambda: None}
    step = make_step(model, batch, groups[name](), reduce_nothing if name == "hook" else None)
    times = []
    while len(times) < WARM_UP + 5 or sum(times[WARM_UP:]) < seconds:
        begin = time.perf_counter()
        step()
        times.append(common(time.perf_counter() - begin))
    answer(model=model, group=name, steps=len(times) - WARM_UP, seconds=statistics.median(times[WARM_UP:]))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("annulus")
    if sys.argv[1] == "all-reduce":
        all_reduces([int(size) for size in sys.argv[2].split(",")], float(sys.argv[3]))
    else:
        steps(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
