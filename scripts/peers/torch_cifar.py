"""Trains a small network on CIFAR-10 with PyTorch, like `annulus train --config scripts/recipes/cifar10.toml`.

  torch_cifar.py FOLDER --settings "channels last, eager" [--threads 2] [--epochs 10] [--seed 1]

FOLDER has train.npz and test.npz with images {N, 32, 32, 3}, bytes, and labels; both are in memory, and images are
augmented as batches. The network and the settings are those of Jordan, "94% on CIFAR-10 in 3.29 seconds on a single
GPU", 2024, arXiv 2404.00498; the rates and the decay are the recipe's. Prints one line of JSON when it is ready, one after each
epoch, and one after the evaluation.
"""
import argparse
import json
import math
import pathlib
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

import step_rank
from torch_ddp import LAYOUTS

BATCH, MOMENTUM, SMOOTHING = 1024, 0.85, 0.2
RATE, DECAY, BIAS_FACTOR = 1.5, 0.00133, 64
WARM_UP, FIRST, LAST = 0.23, 0.2, 0.07  # of the epochs; of the rate
LOOKAHEAD, LOOKAHEAD_DECAY = 5, 0.774
WHITENING_BIAS_EPOCHS = 3
WHITENING_IMAGES, WHITENING_EPSILON = 2000, 5e-4
EVALUATION_BATCH = 1000


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    return step_rank.parse_rank(parser)


def read(folder, split, layout):
    arrays = numpy.load(folder / f"{split}.npz")
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=layout), torch.from_numpy(arrays["labels"].astype(numpy.int64))


def convolution(inputs, outputs):
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:inputs])
    return layer


def norm(channels):
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad = False
    return layer


def block(inputs, outputs):
    return nn.Sequential(convolution(inputs, outputs), nn.MaxPool2d(2), norm(outputs), nn.GELU(),
                         convolution(outputs, outputs), norm(outputs), nn.GELU())


class Network(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean.view(3, 1, 1))
        self.register_buffer("std", std.view(3, 1, 1))
        self.whiten = nn.Conv2d(3, 24, 2)
        self.blocks = nn.Sequential(nn.GELU(), block(24, 64), block(64, 256), block(256, 256), nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(256, 10, bias=False)

    def forward(self, images):
        return self.head(self.blocks(self.whiten(self.normalized(images)))) / 9

    def normalized(self, images):
        return (images.float() / 255 - self.mean) / self.std

    def set_whitening(self, images):
        patches = self.normalized(images).unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        values, vectors = torch.linalg.eigh(patches.T.double() @ patches.double() / len(patches))
        weights = (vectors / (values + WHITENING_EPSILON).sqrt()).T.flip(0).float().view(12, 3, 2, 2)
        self.whiten.weight.data.copy_(torch.cat([weights, -weights]))
        self.whiten.weight.requires_grad = False


class Images:
    """The training images: in every second epoch each is flipped, and all are moved by up to 2 pixels."""

    def __init__(self, images, labels, random):
        self.labels, self.random = labels, random
        pixels = images.permute(0, 2, 3, 1).numpy()
        self.padded = torch.from_numpy(numpy.pad(pixels, ((0, 0), (2, 2), (2, 2), (0, 0)), "reflect"))
        self.turned = torch.rand(len(labels), generator=random) < 0.5

    def batches(self, epoch):
        shifts = torch.randint(5, (len(self.labels), 2), generator=self.random)
        turned = self.turned ^ (epoch % 2 == 1)
        steps = torch.arange(32)
        for chosen in torch.randperm(len(self.labels), generator=self.random).split(BATCH):
            rows = shifts[chosen, 0, None] + steps
            columns = shifts[chosen, 1, None] + steps
            columns = torch.where(turned[chosen, None], columns.flip(1), columns)
            images = self.padded[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
            yield images.permute(0, 3, 1, 2), self.labels[chosen]


def factor(done):
    """The rate's, if this share of the training is done."""
    if done < WARM_UP:
        return FIRST + (1 - FIRST) * done / WARM_UP
    return 1 + (LAST - 1) * (done - WARM_UP) / (1 - WARM_UP)


class Lookahead:
    def __init__(self, network, steps):
        self.values = [value for value in network.state_dict().values() if value.dtype.is_floating_point]
        self.averages, self.steps = [value.clone() for value in self.values], steps

    @torch.no_grad()
    def after(self, step):
        if step % LOOKAHEAD == 0:
            decay = LOOKAHEAD_DECAY * (step / self.steps) ** 3
            torch._foreach_lerp_(self.averages, self.values, 1 - decay)
            self.restore()

    @torch.no_grad()
    def restore(self):
        torch._foreach_copy_(self.values, self.averages)


def logits(network, images):
    """The weighted mean over the views of scripts/recipes/cifar10.toml."""
    images = images.float()
    padded = functional.pad(images, (1,) * 4, "reflect")
    views = [(images, 0.25), (padded[:, :, :32, :32], 0.125), (padded[:, :, 2:, 2:], 0.125)]
    return sum(weight * (network(view) + network(view.flip(3))) for view, weight in views)


def precision(options):
    return torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options.settings)


def accuracy(network, images, labels, options):
    network.eval()
    right = 0
    with torch.inference_mode(), precision(options):
        for x, y in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH)):
            right += (logits(network, x).argmax(1) == y).sum().item()
    network.train()
    return right / len(images)


def make_optimizer(network):
    biases = [p for name, p in network.named_parameters() if name.startswith("blocks") and name.endswith("bias")]
    known = set(map(id, biases))
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in known]
    groups = [{"params": biases, "lr": BIAS_FACTOR * RATE, "weight_decay": DECAY / BIAS_FACTOR},
              {"params": others, "lr": RATE, "weight_decay": DECAY}]
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True, fused=True)
    return optimizer, [group["lr"] for group in groups]


class Training:
    """The network with everything that a step needs."""

    def __init__(self, options):
        layout = LAYOUTS[options.settings[0]]
        images, labels = read(options.folder, "train", layout)
        values = images.float() / 255
        self.network = Network(values.mean((0, 2, 3)), values.std((0, 2, 3)))
        self.network.set_whitening(images[::max(1, len(images) // WHITENING_IMAGES)])
        self.network.to(memory_format=layout)
        self.trained = torch.compile(self.network) if "compiled" in options.settings else self.network
        self.images = Images(images, labels, torch.Generator().manual_seed(options.seed))
        self.optimizer, self.rates = make_optimizer(self.network)
        self.loss = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
        self.lookahead = Lookahead(self.network, options.epochs * math.ceil(len(labels) / BATCH))
        self.options, self.epochs, self.count, self.step = options, options.epochs, len(labels), 0

    def run_epoch(self, epoch):
        """Returns the mean loss."""
        self.network.whiten.bias.requires_grad = epoch < WHITENING_BIAS_EPOCHS
        images_done, total = 0, 0.0
        for x, y in self.images.batches(epoch):
            done = (epoch + (images_done + len(y) / 2) / self.count) / self.epochs
            for group, rate in zip(self.optimizer.param_groups, self.rates):
                group["lr"] = rate * factor(done)
            self.optimizer.zero_grad(set_to_none=True)
            with precision(self.options):
                value = self.loss(self.trained(x), y)
            value.backward()
            self.optimizer.step()
            self.step += 1
            self.lookahead.after(self.step)
            images_done += len(y)
            total += value.item() * len(y)
        return total / self.count


def main():
    begin = time.perf_counter()
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    training = Training(options)
    test_images, test_labels = read(options.folder, "test", LAYOUTS[options.settings[0]])

    def say(**values):
        print(json.dumps({"since_start": time.perf_counter() - begin, **values}), file=options.answers)

    say(version=torch.__version__)
    for epoch in range(options.epochs):
        begun = time.perf_counter()
        loss = training.run_epoch(epoch)
        say(epoch=epoch + 1, seconds=time.perf_counter() - begun, train_loss=loss)
    training.lookahead.restore()
    begun = time.perf_counter()
    found = accuracy(training.network, test_images, test_labels, options)
    say(evaluation_seconds=time.perf_counter() - begun, test_accuracy=found)


main()
