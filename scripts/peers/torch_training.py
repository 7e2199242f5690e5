"""Trains `cnn` on Fashion-MNIST with PyTorch, epoch by epoch, like `annulus train`; one of one or several ranks.

  torch_training.py FOLDER --settings "channels last, eager" [--ranks 2 --rank 0 --meet HOST:PORT] [--threads 1]
                    [--batch 128] [--epochs 6] [--lr 0.02] [--seed 1]

FOLDER has the four IDX files. --batch is the global batch. The images are in memory as bytes, in the network's layout.
Rank 0 prints one line of JSON after every epoch's evaluation.
"""
import argparse
import gzip
import json
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn

import step_rank
import torch_ddp


def read(folder, name, offset):
    file = folder / name
    data = file.read_bytes() if file.exists() else gzip.open(f"{file}.gz").read()
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=offset).copy())


def read_images(folder, name, layout):
    return read(folder, name, 16).reshape(-1, 1, 28, 28).contiguous(memory_format=layout)


class Normalize(nn.Module):
    def __init__(self, images):
        super().__init__()
        values = images.float()
        self.mean, self.std = values.mean().item(), values.std().item()

    def forward(self, images):
        return (images.float() - self.mean) / self.std


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    return step_rank.parse_rank(parser)


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
    options = parse_options()
    torch_ddp.join(options)
    torch.manual_seed(options.seed)
    layout = torch_ddp.LAYOUTS[options.settings[0]]
    images = read_images(options.folder, "train-images-idx3-ubyte", layout)
    labels = read(options.folder, "train-labels-idx1-ubyte", 8).long()
    test_images = read_images(options.folder, "t10k-images-idx3-ubyte", layout)
    test_labels = read(options.folder, "t10k-labels-idx1-ubyte", 8).long()
    network = nn.Sequential(Normalize(images), torch_ddp.cnn()).to(memory_format=layout)
    trained = torch_ddp.distributed(network, options)
    if "compiled" in options.settings:
        trained = torch.compile(trained)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9, fused=True)
    loss = nn.CrossEntropyLoss()

    for epoch in range(1, options.epochs + 1):
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
            print(json.dumps({"epoch": epoch, "seconds": seconds, "test_accuracy": right / len(test_images)}),
                  file=options.answers)
    torch_ddp.leave(options)


main()
