"""Trains `cnn` on Fashion-MNIST with PyTorch, epoch by epoch, like `annulus train`; one of one or several ranks.

  torch_training.py FOLDER --settings "channels last, eager" [--ranks 2 --rank 0 --meet HOST:PORT] [--threads 1]
                    [--batch 128] [--epochs 6] [--lr 0.02] [--seed 1]

FOLDER has the four IDX files. --batch is the global batch. The images are in memory as bytes, in the network's layout.
Rank 0 prints one line of JSON after every epoch's evaluation.
"""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import idx_files
import step_rank
import torch_ddp


def read(folder, split, layout):
    images, labels = idx_files.images_and_labels(folder, split)
    return torch.from_numpy(images).unsqueeze(1).contiguous(memory_format=layout), torch.from_numpy(labels).long()


class Normalize(nn.Module):
    def __init__(self, images):
        super().__init__()
        values = images.float()
        self.mean, self.std = values.mean().item(), values.std().item()

    def forward(self, images):
        return (images.float() - self.mean) / self.std


def correct(network, images, labels, options):
    """Returns the number of correct classifications over all ranks."""
    network.eval()
    own = step_rank.share_of(options, len(images))
    right = torch.zeros((), dtype=torch.int64)
    with torch.inference_mode():
        for x, y in zip(images[own].split(500), labels[own].split(500)):
            right += (network(x).argmax(1) == y).sum()
    if options.ranks > 1:
        dist.all_reduce(right)
    network.train()
    return right.item()


def main():
    options = step_rank.parse_training()
    torch_ddp.join(options)
    torch.manual_seed(options.seed)
    layout = torch_ddp.LAYOUTS[options.settings[0]]
    images, labels = read(options.folder, "train", layout)
    test_images, test_labels = read(options.folder, "t10k", layout)
    network = nn.Sequential(Normalize(images), torch_ddp.cnn()).to(memory_format=layout)
    trained = torch_ddp.distributed(network, options)
    if "compiled" in options.settings:
        trained = torch.compile(trained)
    settings = {"lr": options.lr, "momentum": 0.9, "fused": True}
    if "sharded optimizer" in options.settings:
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, **settings)
    else:
        optimizer = torch.optim.SGD(network.parameters(), **settings)
    loss = nn.CrossEntropyLoss()

    for epoch in range(options.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1000 * options.seed + epoch))
        begin = time.perf_counter()
        for batch in order.split(options.batch):
            own = batch[step_rank.share_of(options, len(batch))]
            optimizer.zero_grad(set_to_none=True)
            loss(trained(images[own]), labels[own]).backward()
            optimizer.step()
        seconds = time.perf_counter() - begin
        right = correct(network, test_images, test_labels, options)
        if options.rank == 0:
            step_rank.report_epoch(options, seconds, right / len(test_images))
    torch_ddp.leave(options)


main()
