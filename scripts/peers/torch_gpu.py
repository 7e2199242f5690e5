#!/usr/bin/env python3
"""Training steps of PyTorch on one GPU, with its best settings, for programs that alternate it with others.

  torch_gpu.py facts                                     prints versions and the GPU as one line of JSON
  torch_gpu.py step MODEL BATCH [--image 224x224x3] [--classes 1000] [--precision bf16] [--variant eager] [--adamw]

A variant is eager, compile, or compile:MODE with a mode of torch.compile, such as max-autotune-no-cudagraphs.
`step` prepares the network, including cuDNN's search for the fastest plans and compilation, and prints
{"ready_seconds": ...}, or {"error": ...}. Then it reads lines with the seconds to measure, and answers each with
{"median_seconds": ..., "images_per_second": ..., ...} ("tokens_per_second" for a GPT, gpt2:LENGTH), up to the end of its input. Without a usable GPU it only prints
{"missing": reason}.

A step is a training step: forward, cross-entropy, backward, SGD with momentum 0.9, or AdamW. The settings: channels last,
cudnn.benchmark, autocast to 16 bits (fp16 with a GradScaler), TF32 for fp32 operations, one fused kernel for all updates,
gradients set to None. Images are already on the GPU, normalized, in the network's type and layout, and the loss is not
read. A GPT's vocabulary is a multiple of 64. Steps are timed by CUDA events, from the end of one to the end of the next.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(json.dumps({"missing": f"no PyTorch: {error}"}))
    sys.exit()

import torch_ddp
from step_rank import GPTS, samples, unit

WARM_UP_STEPS = 10  # for cuDNN's search and PyTorch's memory pool
STEPS_AT_ONCE = 10  # between two checks of the clock
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


# --- ResNet-50 (He et al., 2015), v1.5: the 3x3 convolutions have the stride ------------------------------------------

def convolution_norm(inputs, outputs, kernel, stride=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            *convolution_norm(inputs, channels, 1), nn.ReLU(inplace=True),
            *convolution_norm(channels, channels, 3, stride), nn.ReLU(inplace=True),
            *convolution_norm(channels, 4 * channels, 1))
        same = stride == 1 and inputs == 4 * channels
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution_norm(inputs, 4 * channels, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def resnet50(channels, classes):
    layers = [*convolution_norm(channels, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if block == 0 and stage > 0 else 1))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


# --- Vision transformers (Dosovitskiy et al., 2021) -------------------------------------------------------------------

class Vit(nn.Module):
    def __init__(self, image, classes, heads, width, blocks=12, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(image[2], width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + image[0] // patch * (image[1] // patch), width))
        self.blocks = nn.Sequential(
            *(torch_ddp.GptBlock(heads, width, causal=False, gelu="none") for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


VITS = {"vit_s_16": (6, 384), "vit_b_16": (12, 768)}  # heads, width


def make_network(name, image, classes):
    if name == "resnet50":
        return resnet50(image[2], classes)
    if name in VITS:
        return Vit(image, classes, *VITS[name])
    (of_channels, of_height, of_width), of_classes = torch_ddp.INPUTS[name]
    if (image, classes) != ([of_height, of_width, of_channels], of_classes):
        sys.exit(f"{name} is for images of {of_height}x{of_width}x{of_channels} in {of_classes} classes")
    return torch_ddp.make_network(name)


# --- Steps ------------------------------------------------------------------------------------------------------------

def make_work(options):
    """Returns the network, a function of its batch that returns the loss, and the batch."""
    if options.model in GPTS:
        length, (vocabulary, *sizes) = samples(options.model), GPTS[options.model]
        network = torch_ddp.Gpt(length, (vocabulary + 63) // 64 * 64, *sizes).to("cuda").train()
        return network, network, (torch.randint(0, vocabulary, (options.batch, length + 1), device="cuda"),)
    height, width, channels = options.image
    network = make_network(options.model, options.image, options.classes)
    network = network.to("cuda", memory_format=torch.channels_last).train()
    images = torch.randn(options.batch, channels, height, width, device="cuda", dtype=TYPES[options.precision])
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, options.classes, (options.batch,), device="cuda")
    return network, lambda images, labels: nn.functional.cross_entropy(network(images), labels), (images, labels)


def make_step(options):
    torch.manual_seed(1)
    number = TYPES[options.precision]
    network, loss, batch = make_work(options)
    optimizer = (torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True) if options.adamw else
                 torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, fused=True))
    scaler = torch.amp.GradScaler("cuda", enabled=options.precision == "fp16")

    def loss_of(*batch):
        with torch.autocast("cuda", dtype=number, enabled=options.precision != "fp32"):
            return loss(*batch)
    kind, _, mode = options.variant.partition(":")
    if kind == "compile":
        loss_of = torch.compile(loss_of, mode=mode or None)

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss_of(*batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    return step


def time_steps(step, count):
    """Returns the seconds of each of `count` steps."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in zip(events, events[1:])]


def measure(step, seconds):
    time_steps(step, 3)  # other programs used the GPU
    times = []
    while len(times) < STEPS_AT_ONCE or sum(times) < seconds:
        times += time_steps(step, STEPS_AT_ONCE)
    return times


def make_ready(options):
    """Returns the step, or None if it fails: no compiler, too little memory."""
    begin = time.perf_counter()
    try:
        step = make_step(options)
        time_steps(step, WARM_UP_STEPS)
    except Exception as error:
        return answer({"error": (str(error).splitlines() or [type(error).__name__])[0]})
    answer({"ready_seconds": time.perf_counter() - begin})
    return step


def serve(options):
    step = make_ready(options)
    torch.cuda.empty_cache()  # others are measured in between
    for line in sys.stdin if step else ():
        times = measure(step, float(line))
        torch.cuda.empty_cache()
        median = statistics.median(times)
        answer({"median_seconds": median, "min_seconds": min(times), "steps": len(times),
                f"{unit(options.model)}_per_second": options.batch * samples(options.model) / median})


def facts():
    return {"pytorch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())), "gpu": torch.cuda.get_device_name()}


def answer(line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("facts")
    step = commands.add_parser("step")
    step.add_argument("model", choices=[*torch_ddp.INPUTS, *GPTS])
    step.add_argument("batch", type=int)
    step.add_argument("--image", type=lambda text: [int(word) for word in text.split("x")], default=[28, 28, 1])
    step.add_argument("--classes", type=int, default=10)
    step.add_argument("--precision", choices=TYPES, default="bf16")
    step.add_argument("--variant", default="eager")
    step.add_argument("--adamw", action="store_true")
    options = parser.parse_args()

    if not torch.cuda.is_available():
        return answer({"missing": f"PyTorch {torch.__version__} has no GPU that it can use"})
    if options.command == "facts":
        return answer(facts())
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    serve(options)


if __name__ == "__main__":
    main()
