#!/usr/bin/python3
"""Makes the reference files that the networks are tested against: one training step's loss and gradients by PyTorch.

Run by hand (needs python3-torch and python3-h5py) when a network changes: tests/data/make_reference.py
Computed in float64, so that the reference's own rounding does not matter. The images are drawn until no ReLU's input
is so close to 0, and no maximum so close to the runner-up, that a float32 network's rounding could decide otherwise:
one flipped ReLU moves ResNet-20's gradients by a hundredth. (Small images for it, or one would always be close.)

reference_<model>.h5:
  /images               uint8, batch x height x width x channels;  its attributes mean and deviation (one for each
                        channel): the network sees (pixel / 255 - mean) / deviation
  /labels               int32, batch
  /loss                 float64: the mean cross-entropy, batch norm in training mode
  /logits               float64, batch x 10
  /parameters/<name>    the shape as PyTorch has it (int64; a dense layer's is units x inputs). The values follow from
                        the attributes index, center and bound:
                          value[i] = center + bound * (2 u - 1),  u = (mix(index * 2^32 + i) >> 40) / 2^24
                        with i the row-major position and mix as in kernels/random.h (SplitMix64)
  /gradients/<name>     float32: elements 0, stride, 2 stride, ... of the row-major gradient of the loss (attribute
                        stride, 1 for small ones), and the attributes sum and norm (Euclidean) of the whole gradient
  /statistics/<name>.mean, .variance   float64: of the first and last batch norm's input over the batch; the variance
                        is divided by one less than the number of values, as in PyTorch's running average
"""
import math
import pathlib

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BATCH = 4
CLASSES = 10
LARGEST = 4096  # of a gradient more elements are not stored

margins = []  # of each ReLU and maximum of the last step: how far the closest value is from being decided otherwise


def relu(x):
    margins.append(x.detach().abs().min().item())
    return F.relu(x)


def max_pool(x):
    windows = F.unfold(x.detach().flatten(0, 1).unsqueeze(1), 2, stride=2)
    first, second = windows.topk(2, dim=1).values.unbind(1)
    margins.append((first - second)[first > 0].min().item())  # where all are 0 no gradient passes the ReLU before
    return F.max_pool2d(x, 2)


class Network(nn.Module):
    """Layers under the names that the files give them."""

    def __init__(self):
        super().__init__()
        self.layers = {}

    def layer(self, name, module):
        self.layers[name] = module
        self.add_module(name.replace(".", "_"), module)
        return module


class Plain(Network):
    """Convolutions (kernel, padding, then ReLU and a 2x2 maximum) and dense layers (ReLU but after the last)."""

    def __init__(self, shape, convolutions, units):
        super().__init__()
        channels, size = shape[0], shape[1]
        self.convolutions, self.dense = [], []
        for n, (out, kernel, padding) in enumerate(convolutions, 1):
            self.convolutions.append(self.layer(f"conv{n}", nn.Conv2d(channels, out, kernel, padding=padding)))
            channels, size = out, (size + 2 * padding - kernel + 1) // 2
        features = channels * size * size
        for n, out in enumerate(units, 1):
            self.dense.append(self.layer(f"dense{n}", nn.Linear(features, out)))
            features = out

    def forward(self, x):
        for convolution in self.convolutions:
            x = max_pool(relu(convolution(x)))
        x = x.flatten(1)
        for dense in self.dense[:-1]:
            x = relu(dense(x))
        return self.dense[-1](x)


class ResNet20(Network):
    """He et al., "Deep residual learning for image recognition" (2015), section 4.2, n = 3; projection shortcuts."""

    def __init__(self, channels):
        super().__init__()
        self.stem = self.convolution_norm("stem.conv", "stem.norm", channels, 16, 3, 1)
        self.blocks = []
        channels = 16
        for stage, width in enumerate((16, 32, 64), 1):
            for block in range(1, 4):
                name = f"stage{stage}.block{block}"
                stride = 2 if stage > 1 and block == 1 else 1
                first = self.convolution_norm(f"{name}.conv1", f"{name}.norm1", channels, width, 3, stride)
                second = self.convolution_norm(f"{name}.conv2", f"{name}.norm2", width, width, 3, 1)
                shortcut = nn.Identity()
                if stride > 1:
                    shortcut = self.convolution_norm(
                        f"{name}.shortcut.conv", f"{name}.shortcut.norm", channels, width, 1, 2)
                self.blocks.append((first, second, shortcut))
                channels = width
        self.classifier = self.layer("dense", nn.Linear(channels, CLASSES))

    def convolution_norm(self, convolution, norm, channels, out, kernel, stride):
        return nn.Sequential(
            self.layer(convolution, nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)),
            self.layer(norm, nn.BatchNorm2d(out, eps=1e-5)))

    def forward(self, x):
        x = relu(self.stem(x))
        for first, second, shortcut in self.blocks:
            x = relu(second(relu(first(x))) + shortcut(x))
        return self.classifier(x.mean((2, 3)))


# Image shape, network, and the margin: the deeper, the more rounding has come together at its end.
MODELS = {
    "mlp": ((1, 28, 28), lambda shape: Plain(shape, [], [256, 128, CLASSES]), 1e-4),
    "lenet": ((1, 28, 28), lambda shape: Plain(shape, [(6, 5, 2), (16, 5, 0)], [120, 84, CLASSES]), 1e-5),
    "cnn": ((1, 28, 28), lambda shape: Plain(shape, [(32, 3, 1), (64, 3, 1)], [128, CLASSES]), 1e-5),
    "resnet20": ((3, 8, 8), lambda shape: ResNet20(shape[0]), 1e-4),
}


def mix(key):
    """kernels/random.h, over an array."""
    key = key + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def values(index, shape, center, bound):
    keys = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(index << 32)
    u = (mix(keys) >> np.uint64(40)).astype(np.float64) / 2**24
    return (center + bound * (2 * u - 1)).astype(np.float32).reshape(shape)


def parameters_of(network):
    """(name, tensor, center, bound) of every parameter. The bounds keep activations near one through the layers."""
    for name, module in network.layers.items():
        norm = isinstance(module, nn.BatchNorm2d)
        yield f"{name}.{'scale' if norm else 'weight'}", module.weight, *(
            (1.0, 0.25) if norm else (0.0, float(np.float32(math.sqrt(6 / module.weight[0].numel())))))
        if module.bias is not None:
            yield f"{name}.{'shift' if norm else 'bias'}", module.bias, 0.0, 0.125


def step(make, shape, images, labels, mean, deviation, dtype):
    network = make(shape).to(dtype)
    statistics = {}
    for index, (name, tensor, center, bound) in enumerate(parameters_of(network)):
        tensor.data = torch.from_numpy(values(index, tuple(tensor.shape), center, bound)).to(dtype)
    norms = [name for name, module in network.layers.items() if isinstance(module, nn.BatchNorm2d)]
    for name in norms[:1] + norms[-1:]:
        def record(module, inputs, name=name):
            statistics[f"{name}.mean"] = inputs[0].mean((0, 2, 3)).detach()
            statistics[f"{name}.variance"] = inputs[0].var((0, 2, 3), unbiased=True).detach()
        network.layers[name].register_forward_pre_hook(record)
    pixels = torch.from_numpy(images).to(dtype).permute(0, 3, 1, 2) / 255
    mean, deviation = (torch.tensor(v, dtype=dtype).view(1, -1, 1, 1) for v in (mean, deviation))
    x = (pixels - mean) / deviation
    logits = network.train()(x)
    loss = F.cross_entropy(logits, torch.from_numpy(labels).long())
    loss.backward()
    return network, loss.item(), logits.detach(), statistics


def make_file(folder, model):
    shape, make, margin = MODELS[model]
    labels = np.array([3, 0, 9, 3], dtype=np.int32)
    mean, deviation = [0.5, 0.4375, 0.53125][:shape[0]], [0.25, 0.3125, 0.28125][:shape[0]]
    for seed in range(2000):
        images = np.random.default_rng(seed).integers(0, 256, (BATCH, shape[1], shape[2], shape[0]), dtype=np.uint8)
        arguments = (make, shape, images, labels, mean, deviation)
        margins.clear()
        network, loss, logits, statistics = step(*arguments, torch.float64)
        if min(margins) > margin:
            break
    else:
        raise SystemExit(f"{model}: no images with a margin of {margin}")

    single, single_loss, _, _ = step(*arguments, torch.float32)
    worst = abs(single_loss - loss) / loss
    for (_, a, _, _), (_, b, _, _) in zip(parameters_of(network), parameters_of(single)):
        worst = max(worst, ((a.grad - b.grad).norm() / a.grad.norm()).item())
    assert worst < 1e-4, f"{model}: float32 and float64 differ by {worst:.1e}"

    path = folder / f"reference_{model}.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("images", data=images)
        data.attrs["mean"] = np.float32(mean)
        data.attrs["deviation"] = np.float32(deviation)
        file["labels"] = labels
        file["loss"] = loss
        file["logits"] = logits.numpy()
        for name, value in statistics.items():
            file[f"statistics/{name}"] = value.numpy()
        for index, (name, tensor, center, bound) in enumerate(parameters_of(network)):
            shape_data = file.create_dataset(f"parameters/{name}", data=np.array(tensor.shape, dtype=np.int64))
            shape_data.attrs.update(index=np.int64(index), center=np.float32(center), bound=np.float32(bound))
            gradient = tensor.grad.numpy().ravel()
            # An odd stride walks through every column of the powers of two that sizes are.
            stride = 1 if gradient.size <= LARGEST else -(-gradient.size // LARGEST) | 1
            stored = file.create_dataset(f"gradients/{name}", data=gradient[::stride].astype(np.float32),
                                         compression="gzip", shuffle=True)
            stored.attrs.update(stride=np.int64(stride), sum=gradient.sum(), norm=np.linalg.norm(gradient))
    print(f"{path.name}: seed {seed}, loss {loss:.6f}, float32 differs by {worst:.1e}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    for model in MODELS:
        make_file(pathlib.Path(__file__).resolve().parent, model)
