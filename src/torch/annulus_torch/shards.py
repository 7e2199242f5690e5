"""Gradients whose bits do not depend on the number of ranks."""
import collections
import contextlib


class Shards:
    """Trains a DistributedDataParallel model to the same bits on any number of ranks:

        shards = annulus_torch.Shards(model, 8)
        for images, labels in loader:  # the whole batch, on every rank
            optimizer.zero_grad()
            for images, labels in shards.split(images, labels):
                loss_of(model(images), labels).backward()
            optimizer.step()

    Each batch is divided into `number` shards, and a rank computes number / ranks of them, which must be a power of two. The
    gradients of the shards are added in the order of a binary tree over their numbers, (0+1)+(2+3), whichever rank has them,
    and divided by `number`. Random numbers, as of dropout, are a function of `seed`, the step and the shard."""

    def __init__(self, model, number, seed=0):
        import torch.distributed as dist
        self.model, self.number, self.seed, self.step = model, number, seed, 0
        self.rank, self.ranks = dist.get_rank(model.process_group), dist.get_world_size(model.process_group)
        own = number // self.ranks
        if number < 1 or number % self.ranks or self.ranks > 1 and own & (own - 1):
            raise ValueError(f"annulus: {number} shards cannot be shared by {self.ranks} ranks: each needs 1, 2, 4, 8, ... shards")
        self.own = range(self.rank * own, (self.rank + 1) * own)
        self.sums = collections.defaultdict(list)  # by parameter: the gradients' sums over subtrees
        model.register_comm_hook(self, _all_reduce)

    def split(self, *tensors):
        """Yields the parts of the tensors that are this rank's shards, in which each backward pass runs."""
        import torch
        rows = len(tensors[0])
        if rows % self.number or any(len(tensor) != rows for tensor in tensors):
            raise ValueError(f"annulus: a batch of {rows} samples cannot be divided into {self.number} equal shards; a loader's "
                             "last batch may be smaller: drop_last=True")
        for shard in self.own:
            begin, end = shard * rows // self.number, (shard + 1) * rows // self.number
            last = shard == self.own[-1]
            with torch.random.fork_rng(devices=[]), contextlib.nullcontext() if last else self.model.no_sync():
                torch.manual_seed((self.seed * 1_000_003 + self.step) * self.number + shard)
                yield tuple(tensor[begin:end] for tensor in tensors)
            if not last:
                self._keep(shard - self.own[0])
        self.step += 1

    def _keep(self, number):
        """Moves a shard's gradients from the parameters to the sums."""
        for parameter in self.model.parameters():
            if parameter.grad is None:
                continue
            sums = self.sums[parameter]
            sums.append(parameter.grad.clone())  # DistributedDataParallel's buckets may have it
            parameter.grad = None
            for level in range((~number & number + 1).bit_length() - 1):  # the subtrees that end with this shard
                last = sums.pop()
                sums[-1] += last

    def finish(self, parameter, gradient):
        """Adds the sums to the last shard's gradient."""
        sums = self.sums[parameter]
        while sums:
            gradient += sums.pop()


def _all_reduce(shards, bucket):
    """The hook: gathers each rank's sum, and adds them in tree order."""
    import torch
    import torch.distributed as dist
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        shards.finish(parameter, gradient)
    own = bucket.buffer()
    every = own.new_empty(shards.ranks, own.numel())
    work = dist.all_gather_into_tensor(every.view(-1), own, group=shards.model.process_group, async_op=True)

    def added(gathered):
        gathered.value()  # raises if the group has failed
        sums = list(every)
        while len(sums) > 1:
            pairs = [sums[i].add_(sums[i + 1]) for i in range(0, len(sums) - 1, 2)]
            sums = pairs + sums[2 * len(pairs):]
        return torch.div(sums[0], shards.number, out=own)
    return work.get_future().then(added)
