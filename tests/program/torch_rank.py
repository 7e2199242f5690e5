"""A rank of torch_test.py: every operation of the process group, against values that each rank computes by itself.

  torch_rank.py CHECK..."""
import copy
import datetime
import hashlib
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

SIZES = (0, 1, 2, 3, 7, 1000, 40_001, 700_001)


def values(rank, size, dtype, seed=0):
    """Small integers, whose sums are exact in every type; the same on every rank that asks."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    found = torch.randint(0, 5, (size,), generator=generator)
    return found > 2 if dtype == torch.bool else found.to(dtype)


def expect_equal(got, wanted, what):
    if got.shape != wanted.shape or not torch.equal(got, wanted):
        sys.exit(f"rank {dist.get_rank()}: {what}: {got.flatten()[:8]} instead of {wanted.flatten()[:8]}")


def reductions():
    ranks, ops = dist.get_world_size(), dist.ReduceOp
    plain = {ops.SUM: sum, ops.MIN: lambda all: torch.stack(all).amin(0), ops.MAX: lambda all: torch.stack(all).amax(0),
             ops.PRODUCT: lambda all: torch.stack(all).prod(0)}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
                  torch.int64, torch.uint8, torch.bool, torch.complex64):
        for size in SIZES:
            all_values = [values(rank, size, dtype, 1) for rank in range(ranks)]
            for op, compute in plain.items():
                if dtype.is_complex and op != ops.SUM or dtype.itemsize == 2 and op == ops.PRODUCT and dtype.is_floating_point:
                    continue
                wanted = compute([v.to(torch.int64) if dtype == torch.bool else v for v in all_values]).to(dtype)
                got = values(dist.get_rank(), size, dtype, 1)
                dist.all_reduce(got, op)
                expect_equal(got, wanted, f"all_reduce {op} of {size} {dtype}")
                got = values(dist.get_rank(), size, dtype, 1)
                root = ranks - 1
                dist.reduce(got, root, op)
                expect_equal(got, wanted if dist.get_rank() == root else values(dist.get_rank(), size, dtype, 1),
                             f"reduce {op} of {size} {dtype}")
                if size % ranks == 0 and size > 0:
                    out = torch.empty(size // ranks, dtype=dtype)
                    dist.reduce_scatter_tensor(out, values(dist.get_rank(), size, dtype, 1), op)
                    expect_equal(out, wanted.chunk(ranks)[dist.get_rank()], f"reduce_scatter {op} of {size} {dtype}")
    mean = torch.full((5,), float(dist.get_rank()))
    dist.all_reduce(mean, ops.AVG)
    expect_equal(mean, torch.full((5,), (ranks - 1) / 2), "average")
    bits = torch.tensor([1 << dist.get_rank(), 255])
    dist.all_reduce(bits, ops.BOR)
    expect_equal(bits, torch.tensor([(1 << ranks) - 1, 255]), "bitwise or")


def copies():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex128, torch.int16):
        for size in SIZES:
            own, every = values(rank, size, dtype), [values(r, size, dtype) for r in range(ranks)]
            out = [torch.empty_like(own) for _ in range(ranks)]
            dist.all_gather(out, own)
            for got, wanted in zip(out, every):
                expect_equal(got, wanted, f"all_gather of {size} {dtype}")
            flat = torch.empty(size * ranks, dtype=dtype)
            dist.all_gather_into_tensor(flat, own)
            expect_equal(flat, torch.cat(every), f"all_gather_into_tensor of {size} {dtype}")
            for root in range(ranks):
                got = own.clone()
                dist.broadcast(got, root)
                expect_equal(got, every[root], f"broadcast of {size} {dtype}")
                out = [torch.empty_like(own) for _ in range(ranks)] if rank == root else None
                dist.gather(own, out, root)
                for got, wanted in zip(out or [], every):
                    expect_equal(got, wanted, f"gather of {size} {dtype}")
                got = torch.empty_like(own)
                dist.scatter(got, every if rank == root else None, root)
                expect_equal(got, own, f"scatter of {size} {dtype}")
            rows = torch.cat([values(10 * rank + r, size, dtype) for r in range(ranks)])
            got = torch.empty_like(rows)
            dist.all_to_all_single(got, rows)
            expect_equal(got, torch.cat([values(10 * r + rank, size, dtype) for r in range(ranks)]), f"all_to_all {dtype}")
    # Unequal parts: rank s sends r + 1 rows of 2 to rank r.
    sent = [torch.full((r + 1, 2), float(10 * rank + r)) for r in range(ranks)]
    got = [torch.empty(rank + 1, 2) for _ in range(ranks)]
    dist.all_to_all(got, sent)
    for r in range(ranks):
        expect_equal(got[r], torch.full((rank + 1, 2), float(10 * r + rank)), "all_to_all")
    flat = torch.empty(ranks * (rank + 1), 2)
    dist.all_to_all_single(flat, torch.cat(sent), [rank + 1] * ranks, [r + 1 for r in range(ranks)])
    expect_equal(flat, torch.cat(got), "all_to_all_single with splits")
    # Views that are not contiguous.
    matrix = torch.arange(12.).view(3, 4) + 100 * rank
    column = matrix[:, 1]
    dist.all_reduce(column)
    expect_equal(matrix[:, 1], (torch.arange(12.).view(3, 4) * ranks + 100 * sum(range(ranks)))[:, 1], "a column")
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)], objects


def messages():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for size in SIZES:
        got = torch.empty(size)
        works = [dist.isend(values(rank, size, torch.float32), right, tag=size % 7), dist.irecv(got, left, tag=size % 7)]
        for work in works:
            work.wait()
        expect_equal(got, values(left, size, torch.float32), "recv")
    if rank == 0:
        sources = set()
        for _ in range(1, ranks):
            got = torch.empty(1)
            sources.add(dist.recv(got))
            assert int(got) in sources, (got, sources)
        assert sources == set(range(1, ranks)), sources
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()
    dist.monitored_barrier()


def groups():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    even = dist.new_group(list(range(0, ranks, 2)))
    last = dist.new_group([ranks - 1, 0] if ranks > 1 else [0])
    for _ in range(20):  # operations of several groups in turns, and at the same time
        whole = torch.ones(5000)
        works = [dist.all_reduce(whole, async_op=True)]
        if rank % 2 == 0:
            part = torch.ones(3)
            works.append(dist.all_reduce(part, group=even, async_op=True))
        for work in reversed(works):
            work.wait()
        expect_equal(whole, torch.full((5000,), float(ranks)), "the whole group")
        if rank % 2 == 0:
            expect_equal(part, torch.full((3,), float((ranks + 1) // 2)), "even ranks")
        if rank in (0, ranks - 1):
            part = torch.tensor([float(rank)])
            dist.all_reduce(part, group=last)
            expect_equal(part, torch.tensor([float(ranks - 1)]), "first and last")
    dist.destroy_process_group(even) if rank % 2 == 0 else None


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 50), nn.ReLU(),
                         nn.Linear(50, 10))


def train(model, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(0, 10, (4,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp():
    """The same losses and weights as over gloo; find_unused_parameters and static graphs, too."""
    gloo = dist.new_group(backend="gloo")
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True},
                    {"bucket_cap_mb": 0.01}):
        found = []
        for group in (None, gloo):
            model = nn.parallel.DistributedDataParallel(network(), process_group=group, **options)
            losses = train(model)
            found.append((losses, torch.cat([p.detach().flatten() for p in model.parameters()])))
        (losses, weights), (gloo_losses, gloo_weights) = found
        assert max(abs(a - b) for a, b in zip(losses, gloo_losses)) < 1e-5, (options, losses, gloo_losses)
        assert (weights - gloo_weights).abs().max() < 1e-5, options
        expect_replicas_equal(model)


def sparse():
    """Gradients of embeddings, of which each rank has other rows."""
    gloo, found = dist.new_group(backend="gloo"), []
    for group in (None, gloo):
        torch.manual_seed(5)
        model = nn.parallel.DistributedDataParallel(nn.EmbeddingBag(50, 4, sparse=True), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.arange(2 * dist.get_rank() + 1).view(1, -1) * 3 + step).sum().backward()
            optimizer.step()
        found.append(model.module.weight.detach().clone())
    assert (found[0] - found[1]).abs().max() < 1e-6
    expect_replicas_equal(model)


def fsdp():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    import torch.distributed.checkpoint as checkpoint
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model)
    reference = nn.parallel.DistributedDataParallel(network())
    wanted = train(reference)
    assert max(abs(a - b) for a, b in zip(losses, wanted)) < 1e-4, (losses, wanted)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=folder[0])
    other = network()
    fully_shard(other, mesh=mesh)
    restored = {"model": other.state_dict()}
    checkpoint.load(restored, checkpoint_id=folder[0])
    other.load_state_dict(restored["model"])
    for (name, a), b in zip(model.named_parameters(), other.parameters()):
        expect_equal(b.full_tensor(), a.full_tensor(), name)


def copies_nothing():
    """DistributedDataParallel's buckets are in the memory that ranks share."""
    import annulus_torch
    model = nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=True)
    train(model, 3)
    shared = [line.split()[0] for line in open("/proc/self/maps") if "/dev/shm/" in line or "memfd" in line]
    ranges = [tuple(int(end, 16) for end in line.split("-")) for line in shared]
    inside = [any(begin <= p.grad.data_ptr() < end for begin, end in ranges) for p in model.parameters()]
    assert all(inside) or dist.get_world_size() == 1, (inside, ranges)
    assert annulus_torch.doctor(), "doctor() is empty"


def profiles():
    """A profile that ends with the last wait, of products, which another backend reduces: it once was written to afterwards."""
    for _ in range(100):
        product = torch.full((100,), 2.0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(product, dist.ReduceOp.PRODUCT)
        expect_equal(product, torch.full((100,), 2.0 ** dist.get_world_size()), "product")
        assert "annulus:all_reduce" in [event.name for event in profile.events()]


def lightning():
    import annulus_torch
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    annulus_torch.set_environment()
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,)))
    trainer = lightning.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=2, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                strategy=DDPStrategy(process_group_backend="annulus"))
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    assert trainer.global_step == 2 * 64 // 8 // dist.get_world_size() and dist.get_backend() == "annulus"
    expect_replicas_equal(module)


def trainer():
    import transformers
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=50, n_positions=16)
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": (tokens := torch.randint(0, 50, (16,))), "labels": tokens} for _ in range(64)]
    arguments = transformers.TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=4, num_train_epochs=1,
                                               use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
    found = transformers.Trainer(model, arguments, train_dataset=data).train()
    assert found.global_step == 64 // 4 // dist.get_world_size() and dist.get_backend() == "annulus"
    expect_replicas_equal(model)


def expect_replicas_equal(model):
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(every, weights)
    assert all(torch.equal(weights, other) for other in every), "replicas differ"


def shards():
    """Rank 0 prints the weights' hash after training by shards, with dropout, and after training without shards over gloo."""
    import annulus_torch
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for name, group, dropout in (("shards", None, 0.2), ("gloo", dist.new_group(backend="gloo"), 0)):
        torch.manual_seed(3)
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(8 * 36, 10)),
            process_group=group, bucket_cap_mb=0.01, gradient_as_bucket_view=ranks % 2 == 0)
        by_shards = annulus_torch.Shards(model, 8) if name == "shards" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(7)
        for _ in range(6):
            images, labels = torch.randn(32, 3, 8, 8, generator=generator), torch.randint(0, 10, (32,), generator=generator)
            optimizer.zero_grad()
            parts = by_shards.split(images, labels) if by_shards else [(images.chunk(ranks)[rank], labels.chunk(ranks)[rank])]
            for part, wanted in parts:
                nn.functional.cross_entropy(model(part), wanted).backward()
            optimizer.step()
        expect_replicas_equal(model)
        if rank == 0:
            weights = torch.cat([p.detach().flatten() for p in model.parameters()])
            print(name, hashlib.sha256(weights.numpy().tobytes()).hexdigest(), flush=True)


def mean_of_shards():
    """The gradient is that of the whole batch, up to rounding."""
    import annulus_torch
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    inputs = torch.randn(48, 20)
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    alone(inputs).square().mean().backward()
    for part, in annulus_torch.Shards(model, 4 * dist.get_world_size()).split(inputs):
        model(part).square().mean().backward()
    for got, wanted in zip(model.parameters(), alone.parameters()):
        assert (got.grad - wanted.grad).abs().max() < 1e-6, (got.grad, wanted.grad)
    ranks = dist.get_world_size()
    for number, text in ((5, "5 equal shards"), (0, "0 shards")) if ranks == 1 else ((ranks + 1, f"{ranks + 1} shards"),):
        try:
            list(annulus_torch.Shards(nn.parallel.DistributedDataParallel(alone), number).split(inputs))
        except ValueError as error:
            assert text in str(error), error
        else:
            sys.exit(f"{number} shards were not refused")


def mismatch():
    try:
        dist.all_reduce(torch.ones(3 if dist.get_rank() == 0 else 4))
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    os._exit(3)


def killed():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    os._exit(3)


def frozen():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        time.sleep(30)
    try:
        dist.all_reduce(torch.ones(100_000))
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    os._exit(3)


def operation_without_rank_1():
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        print(f"error: {str(error).splitlines()[0]}; after {time.monotonic() - begun:.0f} s", flush=True)
    os._exit(3)


def exits():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        sys.exit()
    operation_without_rank_1()


def raises():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        raise ValueError("this file has no images")
    operation_without_rank_1()


def ends_early():
    """No rank destroys the group, and no rank needs another that has ended."""
    dist.all_reduce(torch.ones(3))
    time.sleep(1.5 if dist.get_rank() == 0 else 0)
    print("passed", flush=True)
    sys.exit()


def absent_from_group():
    if dist.get_rank() == 1:
        time.sleep(15)
    try:
        dist.new_group(timeout=datetime.timedelta(seconds=3))
    except RuntimeError as error:
        print("error:", str(error).splitlines()[0], flush=True)
    os._exit(3)


def absent():
    """Rank 1 does not call init_process_group()."""
    if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("RANK")):
        time.sleep(15)
        os._exit(0)


def main():
    torch.set_num_threads(1)
    checks = [globals()[name] for name in sys.argv[1:]]
    if absent in checks:
        absent()
    if lightning not in checks:  # which makes the group itself
        limit = 3 if {absent, frozen, mismatch} & set(checks) else 120
        dist.init_process_group("annulus", timeout=datetime.timedelta(seconds=limit))
    for check in checks:
        check()
    dist.destroy_process_group()
    print("passed", flush=True)


if __name__ == "__main__":
    main()
