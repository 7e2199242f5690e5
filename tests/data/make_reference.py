#!/usr/bin/python3
"""Makes the reference files that the networks are tested against: one training step's loss and gradients by PyTorch.

Run by hand (needs python3-torch, python3-torchvision and python3-h5py: scripts/setup --peers) when a network changes:
tests/data/make_reference.py [MODEL...]
Computed in float64, so that the reference's own rounding does not matter. Images are drawn until no ReLU's input is so
close to 0, and no maximum so close to the runner-up, that rounding to float32 could change the decision: one flipped
ReLU changes ResNet-20's gradients by one percent. (Its images are small, or some input would always be close.)

The large models are torchvision's own. With millions of ReLUs after batch norms some
input is always close to 0. So there the shifts are pushed away from 0, half of them up and half down, further than the
normalized and scaled values reach: a channel's ReLU passes everything or nothing. The dense layers of 4096 units in
AlexNet and VGG-16 are narrowed to NARROWED, in the test's graph as here.

reference_gpt-tiny.h5 has, instead of images, labels and logits,
  /windows              int32, batch x (length + 1): tokens, of which -1 is missing; its attribute vocabulary
  /losses               float64: of steps of SGD on the same windows; its attributes rate and momentum

reference_<model>.h5:
  /images               uint8, batch x height x width x channels;  its attributes mean and deviation (one for each
                        channel): the network's input is (pixel / 255 - mean) / deviation
  /labels               int32, batch
  /keys                 int32, batch: for dropout (kernels/dropout_mask.h)
  /tolerance            float64: maximum error of a gradient in float32, relative to its norm
  /loss                 float64: the mean cross-entropy, batch norm in training mode
  /logits               float64, batch x 10
  /inference/logits     float64: the same, but batch norm in inference mode, for models with INFERENCE
  /inference/<name>.running_mean, .running_var   of each batch norm, as parameters are
  /parameters/<name>    PyTorch's shape (int64; a dense layer's is units x inputs). The values follow from the attributes
                        index, center, bound and push:
                          value[i] = center + bound * (2 u - 1) + (push if i is even, else -push),
                          u = (mix(index * 2^32 + i) >> 40) / 2^24
                        with i the row-major position and mix as in kernels/base/random.h (SplitMix64)
  /gradients/<name>     float32: elements 0, stride, 2 stride, ... of the row-major gradient of the loss (attribute
                        stride, 1 for small ones), and the attributes sum and norm (Euclidean) of the whole gradient
  /statistics/<name>.running_mean, .running_var   float64: of the first and last batch norm's input over the batch; the variance
                        is divided by one less than the number of values, as in PyTorch's running average
"""
import math
import pathlib
import sys

import h5py
import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

CLASSES = 10
NARROWED = 48  # units

margins = []  # of each ReLU and maximum of the last step: the distance of the closest value from another decision


def relu(x):
    margins.append(x.detach().abs().min().item())
    return F.relu(x)


def max_pool(x):
    windows = F.unfold(x.detach().flatten(0, 1).unsqueeze(1), 2, stride=2)
    first, second = windows.topk(2, dim=1).values.unbind(1)
    margins.append((first - second)[first > 0].min().item())  # if all are 0, no gradient passes the ReLU before
    return F.max_pool2d(x, 2)


class Network(nn.Module):
    """Layers under their names in the files."""

    def __init__(self):
        super().__init__()
        self.layers = {}

    def layer(self, name, module):
        self.layers[name] = module
        self.add_module(name.replace(".", "_"), module)
        return module

    def others(self):
        """(name, tensor) of the parameters that belong to no layer."""
        return []


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
            self.dense.append(self.layer(f"fc{n}", nn.Linear(features, out)))
            features = out

    def forward(self, x):
        for convolution in self.convolutions:
            x = max_pool(relu(convolution(x)))
        x = x.flatten(1)
        for dense in self.dense[:-1]:
            x = relu(dense(x))
        return self.dense[-1](x)


class SmallResNet(Network):
    """He et al., "Deep residual learning for image recognition" (2015), section 4.2, of 6n + 2 layers; projection
    shortcuts."""

    def __init__(self, channels, n):
        super().__init__()
        self.stem = self.convolution_norm("conv1", "bn1", channels, 16, 3, 1)
        self.blocks = []
        channels = 16
        for stage, width in enumerate((16, 32, 64), 1):
            for block in range(n):
                name = f"layer{stage}.{block}"
                stride = 2 if stage > 1 and block == 0 else 1
                first = self.convolution_norm(f"{name}.conv1", f"{name}.bn1", channels, width, 3, stride)
                second = self.convolution_norm(f"{name}.conv2", f"{name}.bn2", width, width, 3, 1)
                shortcut = nn.Identity()
                if stride > 1:
                    shortcut = self.convolution_norm(
                        f"{name}.downsample.0", f"{name}.downsample.1", channels, width, 1, 2)
                self.blocks.append((first, second, shortcut))
                channels = width
        self.classifier = self.layer("fc", nn.Linear(channels, CLASSES))

    def convolution_norm(self, convolution, norm, channels, out, kernel, stride):
        return nn.Sequential(
            self.layer(convolution, nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)),
            self.layer(norm, nn.BatchNorm2d(out, eps=1e-5)))

    def forward(self, x):
        x = relu(self.stem(x))
        for first, second, shortcut in self.blocks:
            x = relu(second(relu(first(x))) + shortcut(x))
        return self.classifier(x.mean((2, 3)))


class Dropout(nn.Module):
    """The number-th of its network."""

    def __init__(self, rate, number):
        super().__init__()
        self.rate, self.number = rate, number

    def forward(self, x):
        if not self.training:
            return x
        samples = mix(mix(KEYS[:len(x), None]) ^ np.uint64(self.number))
        words = mix(samples ^ np.arange(x[0].numel(), dtype=np.uint64))
        kept = (words >> np.uint64(32)) >= np.uint64(self.rate * 2**32)
        return x * torch.from_numpy(kept / (1 - self.rate)).to(x.dtype).view_as(x)


class Torchvision(Network):
    """One of torchvision's models, whose names are ours. Its ReLUs and maxima are measured like ours."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        dropouts = 0
        for name, module in list(model.named_modules()):
            if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.LayerNorm)):
                self.layers[name] = module
            if isinstance(module, nn.Dropout):
                parent, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(parent), attribute, Dropout(module.p, dropouts))
                dropouts += 1
            if isinstance(module, nn.ReLU):
                module.register_forward_pre_hook(lambda _, inputs: measure_relu(inputs[0]))
                module.inplace = False
            if isinstance(module, (nn.Hardswish, nn.Hardsigmoid)):
                module.register_forward_pre_hook(lambda _, inputs: measure_bends(inputs[0]))
                module.inplace = False
            if isinstance(module, nn.MaxPool2d):
                module.register_forward_pre_hook(measure_max_pool)
            if isinstance(module, torchvision.models.inception.BasicConv2d):  # its ReLU is a function
                module.bn.register_forward_hook(lambda _, inputs, output: measure_relu(output))

    def others(self):
        known = {id(p) for module in self.layers.values() for p in module.parameters()}
        return [(name, p) for name, p in self.model.named_parameters() if id(p) not in known]

    def forward(self, x):
        return self.model(x)


def measure_relu(x):
    margins.append(x.detach().abs().min().item())


def measure_bends(x):
    margins.append((x.detach().abs() - 3).abs().min().item())


def measure_max_pool(module, inputs):
    size, stride, padding = module.kernel_size, module.stride, module.padding
    planes = F.pad(inputs[0].detach().flatten(0, 1).unsqueeze(1), [padding] * 4, value=-1e30)
    first, second = F.unfold(planes, size, stride=stride).topk(2, dim=1).values.unbind(1)
    if (first > 0).any():
        margins.append((first - second)[first > 0].min().item())


def resnet(make):
    return Torchvision(make(num_classes=CLASSES))


def alexnet():
    model = torchvision.models.alexnet(num_classes=CLASSES)
    model.classifier[1], model.classifier[4], model.classifier[6] = (
        nn.Linear(256 * 36, NARROWED), nn.Linear(NARROWED, NARROWED), nn.Linear(NARROWED, CLASSES))
    return Torchvision(model)


def vgg16():
    model = torchvision.models.vgg16(num_classes=CLASSES, init_weights=False)
    model.classifier[0], model.classifier[3], model.classifier[6] = (
        nn.Linear(512 * 49, NARROWED), nn.Linear(NARROWED, NARROWED), nn.Linear(NARROWED, CLASSES))
    return Torchvision(model)


def inception_v3():
    model = torchvision.models.inception_v3(num_classes=CLASSES, aux_logits=False, init_weights=False)
    # Its pools within the blocks are functions; their inputs are measured at the beginning of the block.
    for block in (model.Mixed_6a, model.Mixed_7a):
        block.register_forward_pre_hook(lambda _, inputs: measure_max_pool(nn.MaxPool2d(3, 2), inputs))
    return Torchvision(model)


def densenet121():
    model = torchvision.models.densenet121(num_classes=CLASSES)
    model.features.norm5.register_forward_hook(lambda _, inputs, output: measure_relu(output))  # its ReLU is a function
    return Torchvision(model)


def vit(size, patch, layers, heads, width):
    return Torchvision(torchvision.models.VisionTransformer(size, patch, layers, heads, width, 4 * width,
                                                            num_classes=CLASSES))


class Reference:
    """The settings of a model's comparison. `margin`: larger for deeper networks, whose rounding errors accumulate.
    `push`: see parameters_of. `largest`: maximum number of stored elements of a gradient. `tolerance`: maximum error of
    a gradient in float32, relative to its norm; PyTorch's own must satisfy it."""

    def __init__(self, shape, make, margin, batch=4, push=0.0, largest=4096, tolerance=2e-5):
        self.shape, self.make, self.margin, self.batch, self.push, self.largest, self.tolerance = (
            shape, make, margin, batch, push, largest, tolerance)


MODELS = {
    "mlp": Reference((1, 28, 28), lambda: Plain((1, 28, 28), [], [256, 128, CLASSES]), 1e-4),
    "lenet": Reference((1, 28, 28), lambda: Plain((1, 28, 28), [(6, 5, 2), (16, 5, 0)], [120, 84, CLASSES]), 1e-5),
    "cnn": Reference((1, 28, 28), lambda: Plain((1, 28, 28), [(32, 3, 1), (64, 3, 1)], [128, CLASSES]), 1e-5),
    "resnet20": Reference((3, 8, 8), lambda: SmallResNet(3, 3), 1e-4),
    "resnet56": Reference((3, 8, 8), lambda: SmallResNet(3, 9), 3e-6, 2, 0.75, 64, 1e-4),
    "resnet18": Reference((3, 64, 64), lambda: resnet(torchvision.models.resnet18), 3e-6, 2, 0.75, 64, 1e-4),
    "resnet34": Reference((3, 64, 64), lambda: resnet(torchvision.models.resnet34), 3e-6, 2, 0.75, 64, 1e-4),
    "resnet50": Reference((3, 64, 64), lambda: resnet(torchvision.models.resnet50), 3e-6, 2, 0.75, 64, 1e-4),
    "resnet101": Reference((3, 64, 64), lambda: resnet(torchvision.models.resnet101), 3e-6, 2, 0.75, 64, 1e-4),
    "resnet152": Reference((3, 64, 64), lambda: resnet(torchvision.models.resnet152), 3e-6, 2, 0.75, 64, 1e-4),
    "alexnet": Reference((3, 63, 67), alexnet, 3e-6, 2, 0.0, 64),
    "vgg16": Reference((3, 32, 33), vgg16, 3e-6, 2, 0.0, 64),
    "inception_v3": Reference((3, 107, 107), inception_v3, 3e-6, 2, 0.75, 64, 3e-4),
    "densenet121": Reference((3, 64, 64), densenet121, 3e-6, 2, 0.75, 64, 1e-4),
    "mobilenet_v3_large": Reference((3, 64, 64), lambda: Torchvision(torchvision.models.mobilenet_v3_large(num_classes=CLASSES)),
                                    3e-6, 2, 0.75, 64, 1e-4),
    "vit_tiny": Reference((3, 32, 32), lambda: vit(32, 4, 6, 3, 192), 0.0, 4, 0.0, 64),
    "vit_s_16": Reference((3, 64, 64), lambda: vit(64, 16, 12, 6, 384), 0.0, 2, 0.0, 64),
    "vit_b_16": Reference((3, 48, 48), lambda: vit(48, 16, 12, 12, 768), 0.0, 2, 0.0, 64),
}
INFERENCE = ("resnet18", "inception_v3", "mobilenet_v3_large")
KEYS = np.array([20, -7, 1 << 30, 5], dtype=np.int32).view(np.uint32).astype(np.uint64)


def mix(key):
    """kernels/base/random.h, over an array."""
    key = key + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def values(index, shape, center, bound, push):
    numbers = np.arange(math.prod(shape), dtype=np.uint64)
    u = (mix(numbers + np.uint64(index << 32)) >> np.uint64(40)).astype(np.float64) / 2**24
    pushed = np.where(numbers % 2 == 0, push, -push)
    return (center + bound * (2 * u - 1) + pushed).astype(np.float32).reshape(shape)


def parameters_of(network, push):
    """(name, tensor, center, bound, push) of every parameter. The bounds keep activations near one through the layers;
    if batch norms' shifts are pushed away from 0, the scales are small enough to keep them there."""
    for name, module in network.layers.items():
        norm = isinstance(module, (nn.BatchNorm2d, nn.LayerNorm))
        scale = 0.25 if push else 1.0
        yield f"{name}.weight", module.weight, *(
            (scale, scale / 4) if norm else (0.0, float(np.float32(math.sqrt(6 / module.weight[0].numel()))))), 0.0
        if module.bias is not None:
            yield f"{name}.bias", module.bias, 0.0, 0.125, push if norm else 0.0
    for name, tensor in network.others():
        yield name, tensor, 0.0, float(np.float32(math.sqrt(6 / tensor.shape[-1]))) if "weight" in name else 0.125, 0.0


def statistics_of(network):
    """(name, tensor, center, bound, push) of every batch norm's running statistics. The variances are smaller than one
    by the same factor as the scales (see parameters_of), or an image's signal would vanish in the network."""
    for name, module in network.layers.items():
        if isinstance(module, nn.BatchNorm2d):
            yield f"{name}.running_mean", module.running_mean, 0.0, 0.0625, 0.0
            yield f"{name}.running_var", module.running_var, 0.0625, 0.03125, 0.0


def fill(tensors, dtype):
    for index, (_, tensor, *how) in enumerate(tensors):
        tensor.data = torch.from_numpy(values(index, tuple(tensor.shape), *how)).to(dtype)


def normalized(images, mean, deviation, dtype):
    pixels = torch.from_numpy(images).to(dtype).permute(0, 3, 1, 2) / 255
    mean, deviation = (torch.tensor(v, dtype=dtype).view(1, -1, 1, 1) for v in (mean, deviation))
    return (pixels - mean) / deviation


def store_formula(group, tensors):
    for index, (name, tensor, center, bound, push) in enumerate(tensors):
        shape = group.create_dataset(name, data=np.array(tensor.shape, dtype=np.int64))
        shape.attrs.update(index=np.int64(index), center=np.float32(center), bound=np.float32(bound), push=np.float32(push))


def store_inference(file, reference, images, mean, deviation):
    network = reference.make().to(torch.float64)
    fill(parameters_of(network, reference.push), torch.float64)
    fill(statistics_of(network), torch.float64)
    with torch.no_grad():
        file["inference/logits"] = network.eval()(normalized(images, mean, deviation, torch.float64)).numpy()
    store_formula(file["inference"], statistics_of(network))


def step(reference, images, labels, mean, deviation, dtype):
    network = reference.make().to(dtype)
    statistics = {}
    fill(parameters_of(network, reference.push), dtype)
    norms = [name for name, module in network.layers.items() if isinstance(module, nn.BatchNorm2d)]
    for name in norms[:1] + norms[-1:]:
        def record(module, inputs, name=name):
            statistics[f"{name}.running_mean"] = inputs[0].mean((0, 2, 3)).detach()
            statistics[f"{name}.running_var"] = inputs[0].var((0, 2, 3), unbiased=True).detach()
        network.layers[name].register_forward_pre_hook(record)
    logits = network.train()(normalized(images, mean, deviation, dtype))
    loss = F.cross_entropy(logits, torch.from_numpy(labels).long())
    loss.backward()
    return network, loss.item(), logits.detach(), statistics


def make_file(folder, model):
    reference = MODELS[model]
    shape, margin = reference.shape, reference.margin
    labels = np.array([3, 0, 9, 3], dtype=np.int32)[:reference.batch]
    mean, deviation = [0.5, 0.4375, 0.53125][:shape[0]], [0.25, 0.3125, 0.28125][:shape[0]]
    for seed in range(2000):
        images = np.random.default_rng(seed).integers(0, 256, (reference.batch, *shape[1:], shape[0]), dtype=np.uint8)
        arguments = (reference, images, labels, mean, deviation)
        margins.clear()
        network, loss, logits, statistics = step(*arguments, torch.float64)
        if min(margins, default=math.inf) > margin:
            break
    else:
        raise SystemExit(f"{model}: no images with a margin of {margin}")

    single, single_loss, _, _ = step(*arguments, torch.float32)
    worst = abs(single_loss - loss) / loss
    for (_, a, *_), (_, b, *_) in zip(parameters_of(network, 0), parameters_of(single, 0)):
        worst = max(worst, ((a.grad - b.grad).norm() / max(a.grad.norm(), 1e-2)).item())
    assert worst < reference.tolerance, f"{model}: float32 and float64 differ by {worst:.1e}"

    path = folder / f"reference_{model}.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("images", data=images)
        data.attrs["mean"] = np.float32(mean)
        data.attrs["deviation"] = np.float32(deviation)
        file["labels"] = labels
        file["keys"] = KEYS[:len(labels)].astype(np.int32)
        file["loss"] = loss
        file["tolerance"] = reference.tolerance
        file["logits"] = logits.numpy()
        for name, value in statistics.items():
            file[f"statistics/{name}"] = value.numpy()
        store_formula(file.create_group("parameters"), parameters_of(network, reference.push))
        if model in INFERENCE:
            store_inference(file, reference, images, mean, deviation)
        for name, tensor, *_ in parameters_of(network, reference.push):
            gradient = tensor.grad.numpy().ravel()
            # An odd stride reaches every column, because sizes are powers of two.
            stride = 1 if gradient.size <= reference.largest else -(-gradient.size // reference.largest) | 1
            few = gradient[::stride].astype(np.float32)
            stored = file.create_dataset(f"gradients/{name}", data=few,
                                         **({"compression": "gzip", "shuffle": True} if few.size > 1024 else {}))
            stored.attrs.update(stride=np.int64(stride), sum=gradient.sum(), norm=np.linalg.norm(gradient))
    print(f"{path.name}: seed {seed}, loss {loss:.6f}, float32 differs by {worst:.1e}, {path.stat().st_size} bytes")


class GptBlock(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.c_attn(self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp_c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Radford et al., "Language models are unsupervised multitask learners" (GPT-2); parameters under their names in
    the files."""

    def __init__(self, vocabulary, length, blocks, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(heads, width) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, windows):
        known = windows[:, :-1] >= 0
        x = self.wte(windows[:, :-1].clamp(min=0)) * known.unsqueeze(2) + self.wpe.weight[:windows.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), ignore_index=-1,
                               reduction="sum") / windows[:, 1:].numel()

    def parameters_of(self):
        """As the function of this name."""
        named = [("wte", self.wte), ("wpe", self.wpe)]
        for i, block in enumerate(self.blocks):
            named += [(f"h.{i}.ln_1", block.ln_1), (f"h.{i}.attn.c_attn", block.c_attn),
                      (f"h.{i}.attn.c_proj", block.c_proj), (f"h.{i}.ln_2", block.ln_2),
                      (f"h.{i}.mlp.c_fc", block.c_fc), (f"h.{i}.mlp.c_proj", block.mlp_c_proj)]
        for name, module in [*named, ("ln_f", self.ln_f)]:
            norm = isinstance(module, nn.LayerNorm)
            yield f"{name}.weight", module.weight, *((1.0, 0.25) if norm else (0.0, 0.125)), 0.0
            if getattr(module, "bias", None) is not None:
                yield f"{name}.bias", module.bias, 0.0, 0.125, 0.0


def gpt_losses(windows, vocabulary, dtype, rate, momentum, steps):
    """The network after the first backward pass, and the losses of all steps."""
    networks = []
    for count in (1, steps):
        network = Gpt(vocabulary, windows.shape[1] - 1, 2, 2, 64).to(dtype)
        fill(network.parameters_of(), dtype)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=momentum)
        losses = []
        for step in range(count):
            optimizer.zero_grad()
            loss = network(torch.from_numpy(windows).long())
            loss.backward()
            losses.append(loss.item())
            if step < count - 1:
                optimizer.step()
        networks.append(network)
    return networks[0], losses


def make_gpt_file(folder, model="gpt-tiny", vocabulary=100, length=24, batch=3, rate=0.1, momentum=0.9, steps=50):
    windows = np.random.default_rng(1).integers(0, vocabulary, (batch, length + 1)).astype(np.int32)
    windows[1, 7] = windows[2, length] = -1
    network, losses = gpt_losses(windows, vocabulary, torch.float64, rate, momentum, steps)
    _, single = gpt_losses(windows, vocabulary, torch.float32, rate, momentum, steps)
    path = folder / f"reference_{model}.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("windows", data=windows).attrs["vocabulary"] = np.int64(vocabulary)
        file.create_dataset("losses", data=losses).attrs.update(rate=np.float32(rate), momentum=np.float32(momentum))
        store_formula(file.create_group("parameters"), network.parameters_of())
        for name, tensor, *_ in network.parameters_of():
            stride = -(-tensor.numel() // 512) | 1
            gradient = tensor.grad.numpy().ravel()
            stored = file.create_dataset(f"gradients/{name}", data=gradient[::stride].astype(np.float32))
            stored.attrs.update(stride=np.int64(stride), norm=np.linalg.norm(gradient))
    worst = max(abs(a - b) / a for a, b in zip(losses, single))
    print(f"{path.name}: losses {losses[0]:.6f} to {losses[-1]:.6f}, float32 differs by {worst:.1e}, "
          f"{path.stat().st_size} bytes")


if __name__ == "__main__":
    folder = pathlib.Path(__file__).resolve().parent
    for model in sys.argv[1:] or [*MODELS, "gpt-tiny"]:
        make_gpt_file(folder) if model == "gpt-tiny" else make_file(folder, model)
