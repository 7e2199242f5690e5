"""Trains a GPT on text with PyTorch, like `annulus train --model nanogpt-cpu`; one of one or several ranks.

  torch_text.py TRAIN VALIDATION SETTINGS-FILE --settings eager [--ranks 2 --rank 0 --meet HOST:PORT] [--threads 1]
                [--seed 1]

TRAIN and VALIDATION are texts, whose tokens are their bytes and one that ends each text. The JSON file has the settings
of scripts/bench text. Windows begin at multiples of their length; in training each is used once an epoch, in random order, and
begins later by a random number less than its length. Rank 0 prints one line of JSON after every evaluation.
"""
import argparse
import json
import math
import pathlib
import time

import numpy
import torch

import step_rank
import torch_ddp

END_OF_TEXT, VOCABULARY = 256, 257


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("validation", type=pathlib.Path)
    parser.add_argument("training", type=lambda path: argparse.Namespace(**json.loads(pathlib.Path(path).read_text())))
    parser.add_argument("--seed", type=int, default=1)
    return step_rank.parse_rank(parser)


def read_tokens(path):
    codes = numpy.frombuffer(path.read_bytes(), numpy.uint8).astype(numpy.int64)
    return torch.from_numpy(numpy.append(codes, END_OF_TEXT))


class Windows:
    """The batches of a training, the same on all ranks, of which each takes its share."""

    def __init__(self, tokens, training, options):
        self.tokens, self.length, self.batch = tokens, training.length, training.batch
        self.count = (len(tokens) - 2) // training.length + 1
        self.random = torch.Generator().manual_seed(options.seed)
        self.share = step_rank.share_of(options, self.batch)
        self.left = torch.empty(0, dtype=torch.int64)

    def next(self):
        if len(self.left) == 0:
            shifts = torch.randint(self.length, (self.count,), generator=self.random)
            begins = (torch.arange(self.count) * self.length + shifts).clamp(max=len(self.tokens) - self.length - 1)
            self.left = begins[torch.randperm(self.count, generator=self.random)]
        begins, self.left = self.left[:self.batch], self.left[self.batch:]
        return self.at(begins[self.share])

    def at(self, begins):
        return self.tokens[begins[:, None] + torch.arange(self.length + 1)]


def make_optimizer(network, training):
    """Weight decay is applied to matrices and embeddings only."""
    groups = [{"params": [p for p in network.parameters() if (p.dim() > 1) == matrix],
               "weight_decay": training.weight_decay * matrix} for matrix in (True, False)]
    return torch.optim.AdamW(groups, lr=training.lr, betas=training.betas, fused=True)


def rate(step, training):
    """In the middle of a step, as Annulus's."""
    done = step + 0.5
    if done < training.warmup:
        return training.lr * done / training.warmup
    share = (done - training.warmup) / (training.steps - training.warmup)
    return training.lr_end + (training.lr - training.lr_end) * (1 + math.cos(math.pi * share)) / 2


def evaluate(network, tokens, length):
    """Returns the mean loss of all tokens but the first; there is a whole number of windows."""
    windows = tokens.unfold(0, length + 1, length)
    with torch.inference_mode():
        losses = [network(part).item() * len(part) for part in windows.split(256)]
    return sum(losses) / len(windows)


def main():
    options = parse_options()
    training = options.training
    torch_ddp.join(options)
    torch.manual_seed(options.seed)
    windows = Windows(read_tokens(options.train), training, options)
    validation = read_tokens(options.validation)
    network = torch_ddp.Gpt(training.length, VOCABULARY, *training.size, positions=training.length)
    trained = torch_ddp.distributed(network, options)
    if "compiled" in options.settings:
        trained = torch.compile(trained)
    optimizer = make_optimizer(network, training)
    trained(windows.at(torch.arange(training.batch)[windows.share])).backward()  # compiles

    seconds = 0
    for step in range(training.max_steps):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, training)
        optimizer.zero_grad(set_to_none=True)
        trained(windows.next()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        optimizer.step()
        seconds += time.perf_counter() - begin
        if (step + 1) % training.eval_every == 0 and options.rank == 0:
            loss = evaluate(network, validation, training.length)
            print(json.dumps({"step": step + 1, "seconds": seconds, "loss": loss, "version": torch.__version__}),
                  file=options.answers)
    torch_ddp.leave(options)


main()
