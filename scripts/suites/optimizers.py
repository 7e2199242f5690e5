"""Optimizers beside each other: Muon, AdamW, LARS and SGD, each at the best of the same number of rates.

  scripts/bench optimizers [--data FILE] [--model cnn] [--length 64] [--batch 64] [--steps 936] [--rates 8] [--seeds 3]
                           [--only muon,adamw] [--clip-norm 1] [--ranks 1] [--threads CORES]
                           [--out build/bench-optimizers]

Each optimizer trains with rates that differ by factors of 2, around a common choice (below), all with the first seed; the
rate with the lowest last test loss then trains with the other seeds. The schedule is a cosine after a warm-up of a
twentieth of the steps. Without --data, images are Fashion-MNIST, from Debian's package. Trainings of an optimizer's
seeds alternate with those of the others, because a machine's speed drifts; seconds are of training only, without start-up
and evaluations. Prints Markdown tables, and writes optimizers.md, optimizers.csv (every evaluation) and optimizers.png:
loss by steps and by seconds.
"""
import csv
import json
import math
import os
import pathlib
import shutil
import statistics

from benchmark import ANNULUS, drawing, give_up, pinned_mpirun, plural, run, say, table, words, write
from fashion_mnist import data_file

CORES = len(os.sched_getaffinity(0))
LIMIT = 3600       # time limit of one training, in seconds
EVALUATIONS, WARMUP = 8, 0.05
# The options of each, and the rate in the middle of those that are tried.
OPTIMIZERS = {"muon": ("muon", 2e-3), "adamw": ("adamw", 2e-3), "lars": ("lars,trust=0.02", 0.5),
              "sgd": ("sgd,nesterov", 5e-2)}


class Run:
    """One training: its evaluations as (step, loss), and the seconds of training."""

    def __init__(self, optimizer, rate, seed, options):
        self.optimizer, self.rate, self.seed = optimizer, rate, seed
        out = options.out / "run"
        shutil.rmtree(out, ignore_errors=True)
        every = options.steps // EVALUATIONS
        arguments = ["train", "--data", options.data, "--model", options.model, "--global-batch", options.batch, "--threads",
                     options.threads, "--epochs", options.epochs, "--max-steps", options.steps, "--eval-every", every,
                     "--checkpoint-every", "end", "--optimizer", OPTIMIZERS[optimizer][0], "--lr", rate, "--schedule", "cosine",
                     "--warmup", WARMUP * options.epochs, "--weight-decay", options.weight_decay, "--clip-norm",
                     options.clip_norm, "--seed", seed, "--out", out, *(["--length", options.length] if options.length else [])]
        _, failure = run([*pinned_mpirun(options.ranks, options.threads), ANNULUS, *arguments], LIMIT)
        self.losses, self.seconds, self.accuracy = [], math.nan, math.nan
        if failure:  # a rate may be too high
            say(f"{optimizer} at {rate:g}, seed {seed}: {failure}")
            return
        results = json.loads((out / "results.json").read_text())
        self.losses = [(e["step"], e["test_loss"]) for e in results["evaluations"]]
        if self.losses[-1][0] != options.steps:
            give_up(f"{options.epochs} epochs end after {self.losses[-1][0]} of {options.steps} steps: give more --epochs")
        self.seconds = sum(epoch["seconds"] for epoch in results["epochs"])
        self.accuracy = results.get("test_accuracy", math.nan)
        say(f"{optimizer} at {rate:g}, seed {seed}: loss {self.last():.4f}, {self.seconds:.1f} s")

    def last(self):
        return self.losses[-1][1] if self.losses else math.inf


def rates_of(optimizer, count):
    middle = OPTIMIZERS[optimizer][1]
    return [float(f"{middle * 2.0 ** (i - count // 2):.3g}") for i in range(count)]


class Curves:
    """The runs of an optimizer: all rates, and all seeds of the best."""

    def __init__(self, optimizer, search):
        self.optimizer, self.search = optimizer, search
        self.runs = [min(search, key=Run.last)]
        self.rate = self.runs[0].rate

    def losses(self):
        """(step, mean over the seeds)."""
        return [(steps[0][0], statistics.mean(loss for _, loss in steps)) for steps in zip(*(r.losses for r in self.runs))]

    def seconds(self):
        return statistics.median(r.seconds for r in self.runs)

    def step_reaching(self, loss):
        """The step at which the mean is this low, between evaluations; None if it never is."""
        before = None
        for step, mean in self.losses():
            if mean <= loss:
                return step if before is None else before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - mean)
            before = step, mean
        return None


def summary(all_curves, steps):
    """Beside AdamW, if there is one."""
    base = all_curves.get("adamw", next(iter(all_curves.values())))
    goal, rows = base.losses()[-1][1], []
    for curves in all_curves.values():
        losses = [r.last() for r in curves.runs]
        reached = curves.step_reaching(goal)
        milliseconds = 1000 * curves.seconds() / steps
        rows.append([OPTIMIZERS[curves.optimizer][0], f"{curves.rate:g}", f"{statistics.mean(losses):.4f}",
                     f"{min(losses):.4f} to {max(losses):.4f}",
                     f"{100 * statistics.mean(r.accuracy for r in curves.runs):.2f} %",
                     f"{milliseconds:.2f}", f"{curves.seconds() / base.seconds():.2f}",
                     "never" if reached is None else f"{reached / steps:.2f}",
                     "never" if reached is None else f"{reached / steps * curves.seconds() / base.seconds():.2f}"])
    return table(["optimizer", "rate", "last test loss", "seeds", "test accuracy", "ms a step", f"times {base.optimizer}'s",
                  f"share of the steps to {base.optimizer}'s last loss", "share of its seconds"], rows)


def search_table(all_curves):
    count = len(next(iter(all_curves.values())).search)
    return table(["optimizer", *(f"{2.0 ** (i - count // 2):g} of the middle" for i in range(count)), "middle"],
                 [[name, *(f"{r.last():.4f}" if r.losses else "diverged" for r in curves.search), f"{OPTIMIZERS[name][1]:g}"]
                  for name, curves in all_curves.items()])


def write_csv(path, all_curves):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["optimizer", "rate", "seed", "step", "test_loss", "training_seconds"])
        for curves in all_curves.values():
            for one in [*curves.search, *curves.runs[1:]]:
                for step, loss in one.losses:
                    writer.writerow([one.optimizer, f"{one.rate:g}", one.seed, step, f"{loss:.6f}",
                                     f"{one.seconds * step / one.losses[-1][0]:.3f}"])


def draw(path, all_curves):
    pyplot = drawing()
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for curves in all_curves.values():
        steps, losses = zip(*curves.losses())
        style = {"marker": "o", "label": f"{curves.optimizer}, rate {curves.rate:g}"}
        panels[0].plot(steps, losses, **style)
        panels[1].plot([curves.seconds() * step / steps[-1] for step in steps], losses, **style)
    panels[0].set(xlabel="steps", ylabel="test loss", yscale="log")
    panels[1].set(xlabel="seconds of training")
    for axes in panels:
        axes.grid(alpha=0.3, which="both")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    parser.add_argument("--data", type=pathlib.Path, help="a data file (Fashion-MNIST)")
    parser.add_argument("--model", default="cnn", help="of `annulus models` (cnn)")
    parser.add_argument("--length", type=int, help="tokens in a window of text")
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together (64)")
    parser.add_argument("--steps", type=int, default=936, help="of each training (936)")
    parser.add_argument("--epochs", type=int, default=1, help="that the schedule ends after (1)")
    parser.add_argument("--rates", type=int, default=8, help="for each optimizer (8)")
    parser.add_argument("--seeds", type=int, default=3, help="of the best rate (3)")
    parser.add_argument("--only", type=words, default=list(OPTIMIZERS), help=f"optimizers ({','.join(OPTIMIZERS)})")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="of all optimizers (0.01)")
    parser.add_argument("--clip-norm", type=float, default=0, help="of all optimizers (0: none)")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=CORES, help=f"of each rank ({CORES} here)")


def check_options(parser, options):
    if unknown := set(options.only) - set(OPTIMIZERS):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}; choose from {', '.join(OPTIMIZERS)}")
    if options.steps < EVALUATIONS or options.steps % EVALUATIONS:
        parser.error(f"--steps must be a multiple of {EVALUATIONS}")
    if options.rates < 1 or options.seeds < 1:
        parser.error("--rates and --seeds must be positive")


def main(options):
    if options.data is None:
        options.data = data_file(options.out)
    searches = {name: [] for name in options.only}
    for i in range(options.rates):
        for name, search in searches.items():
            search.append(Run(name, rates_of(name, options.rates)[i], 1, options))
    if failed := [name for name, search in searches.items() if not any(r.losses for r in search)]:
        give_up(f"{', '.join(failed)}: no rate trains")
    all_curves = {name: Curves(name, search) for name, search in searches.items()}
    for seed in range(2, options.seeds + 1):
        for name, curves in all_curves.items():
            curves.runs.append(Run(name, curves.rate, seed, options))
    text = (f"`{options.model}`, {options.steps} steps of {options.batch} samples, {plural(options.ranks, 'rank')} of "
            f"{plural(options.threads, 'thread')}, {plural(options.seeds, 'seed')} of the best of {plural(options.rates, 'rate')}. "
            f"Means over the seeds:\n\n{summary(all_curves, options.steps)}\n\nLast test loss by rate, first seed:\n\n"
            f"{search_table(all_curves)}")
    print(text)
    write(options.out / "optimizers.md", text + "\n")
    write_csv(options.out / "optimizers.csv", all_curves)
    try:
        draw(options.out / "optimizers.png", all_curves)
    except ImportError as error:
        say(f"SKIPPED optimizers.png: {error}")
    return []
