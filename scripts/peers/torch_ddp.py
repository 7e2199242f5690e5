"""Training steps of PyTorch on the CPU (see step_rank.py); several ranks use DistributedDataParallel over gloo."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import step_rank
from step_rank import GPTS, INPUTS, LEARNING_RATE, MEAN, MOMENTUM, STD, samples


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


class GptBlock(nn.Module):
    """A transformer's; those of Vit are not causal."""

    def __init__(self, heads, width, causal=True, gelu="tanh"):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.attention_in(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """GPT-2, as in nanoGPT with biases. Returns the loss. Initial weights are those of GPT-2 and nanoGPT."""

    def __init__(self, length, vocabulary, blocks, heads, width, positions=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(max(length, positions), width)
        self.blocks = nn.Sequential(*(GptBlock(heads, width) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for last in (block.attention_out, block.mlp[-1]):
                nn.init.normal_(last.weight, std=0.02 / (2 * blocks) ** 0.5)
        self.head.weight = self.tokens.weight

    def forward(self, windows):
        x = self.tokens(windows[:, :-1]) + self.positions.weight[:windows.shape[1] - 1]
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


MODELS = {"lenet": lenet, "cnn": cnn, "resnet20": resnet20}  # the others are torchvision's
LAYOUTS = {"NCHW": torch.contiguous_format, "channels last": torch.channels_last}


def make_network(name):
    if name in MODELS:
        return MODELS[name]()
    import torchvision
    if name == "vit_s_16":
        return torchvision.models.VisionTransformer(224, 16, 12, 6, 384, 1536)
    return torchvision.models.get_model(name)


class Normalize(nn.Module):
    def forward(self, images):
        return (images.float() - MEAN) / STD


def join(options):
    """Sets each rank's threads and joins the group of all ranks."""
    torch.set_num_threads(options.threads)
    if options.ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{options.meet}", rank=options.rank, world_size=options.ranks)


def leave(options):
    """Ends the process when all ranks are done."""
    if options.ranks > 1:
        dist.barrier()
    os._exit(0)  # an orderly shutdown of gloo sometimes aborts


def distributed(network, options):
    if options.ranks == 1:
        return network
    return nn.parallel.DistributedDataParallel(network, broadcast_buffers=False, gradient_as_bucket_view=True)


def make_gpt_step(options):
    length = samples(options.model)
    network = distributed(Gpt(length, *GPTS[options.model]).train(), options)
    windows = torch.randint(0, GPTS[options.model][0], (options.batch, length + 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    if "compiled" in options.settings:
        network = torch.compile(network)

    def step():
        optimizer.zero_grad(set_to_none=True)
        network(windows).backward()
        optimizer.step()
    return step


def make_step(options):
    torch.manual_seed(1)
    if options.model in GPTS:
        return make_gpt_step(options)
    layout = LAYOUTS[options.settings[0]]
    network = nn.Sequential(Normalize(), make_network(options.model)).to(memory_format=layout).train()
    shape, classes = INPUTS[options.model]
    images = torch.randint(0, 256, (options.batch, *shape), dtype=torch.uint8).to(memory_format=layout)
    labels = torch.randint(0, classes, (options.batch,))
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    loss = nn.CrossEntropyLoss()
    network = distributed(network, options)
    if "compiled" in options.settings:
        network = torch.compile(network)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(network(images), labels).backward()
        optimizer.step()
    return step


def main():
    options = step_rank.parse_options()
    join(options)
    step_rank.answer(options, make_step(options), lambda: None, torch.__version__)


if __name__ == "__main__":
    main()
