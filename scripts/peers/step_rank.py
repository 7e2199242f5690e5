"""Shared by the ranks of other frameworks (torch_ddp.py, tensorflow_step.py, torch_training.py and others):
their options, and the protocol with step_peers.py, which starts them on their own cores.

  PROGRAM MODEL BATCH --settings TEXT [--ranks 2 --rank 0 --meet ADDRESS:PORT] [--threads 1]

For each input line "TURNS STEPS" a rank makes TURNS turns of STEPS steps, and prints the seconds per step of every turn
and its peak memory. A step is forward, cross-entropy, backward with its all-reduce, and SGD with momentum 0.9, on a batch
of bytes in memory that are converted to floats within the step.
"""
import argparse
import json
import os
import pathlib
import sys
import time

# Networks that Annulus trains from ONNX files; only PyTorch has them.
TORCHVISION = ("mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "densenet121",
               "resnext50_32x4d")
# Networks of Annulus that of the peers only PyTorch has.
TRANSFORMERS = ("vit_s_16", "vit_b_16")
# GPTs of Annulus, likewise, and the length of their windows: vocabulary, blocks, heads, width.
GPTS = {"gpt2:1024": (50257, 12, 12, 768), "gpt2:64": (50257, 12, 12, 768), "nanogpt:256": (257, 6, 6, 384)}
# Channels, height, width; and classes.
INPUTS = {"lenet": ((1, 28, 28), 10), "cnn": ((1, 28, 28), 10), "resnet20": ((3, 32, 32), 10),
          **{name: ((3, 224, 224), 1000) for name in ("resnet18", "resnet50", *TRANSFORMERS, *TORCHVISION)}}
# Channels and stride of resnet20's blocks; for the others, channels of each stage's first block and number of blocks.
RESNET20_BLOCKS = [(16, 1)] * 3 + [(32, 2)] + [(32, 1)] * 2 + [(64, 2)] + [(64, 1)] * 2
STAGES = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
MEAN, STD = 127.5, 64.0
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def samples(model):
    """What speeds count in a sample of a model: 1 image, or its tokens."""
    return int(model.split(":")[1]) if model in GPTS else 1


def unit(model):
    return "tokens" if model in GPTS else "images"


def open_answers():
    """Returns the standard output, reserved for answers: the libraries' output is redirected to the standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def stage_blocks(model):
    """(channels, stride) of every block of resnet18 and resnet50."""
    for stage, count in enumerate(STAGES[model]):
        for block in range(count):
            yield 64 << stage, 2 if stage > 0 and block == 0 else 1


def parse_rank(parser):
    """Adds the options of every rank and parses all."""
    parser.add_argument("--settings", required=True, help="names from step_peers.py, separated by commas and blanks")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--meet", help="host:port of rank 0, with several ranks")
    options = parser.parse_args()
    options.settings = options.settings.split(", ")
    options.answers = open_answers()
    return options


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=[*INPUTS, *GPTS])
    parser.add_argument("batch", type=int)
    return parse_rank(parser)


def parse_training():
    """Parses the options of torch_training.py and tensorflow_training.py."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    return parse_rank(parser)


def report_epoch(options, seconds, accuracy):
    print(json.dumps({"seconds": seconds, "test_accuracy": accuracy, "peak_memory_bytes": peak_memory_bytes()}),
          file=options.answers)


def share_of(options, count):
    """This rank's share of a number of samples."""
    return slice(count * options.rank // options.ranks, count * (options.rank + 1) // options.ranks)


def peak_memory_bytes():
    """Peak memory of this process; getrusage's includes that of its parent before exec."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def answer(options, step, finish, version):
    """`finish` waits for all steps made so far."""
    for line in sys.stdin:
        turns, steps = map(int, line.split())
        seconds = []
        for _ in range(turns):
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            finish()
            seconds.append((time.perf_counter() - begin) / steps)
        print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak_memory_bytes(), "version": version}),
              file=options.answers)
    os._exit(0)  # an orderly shutdown of gloo sometimes aborts
