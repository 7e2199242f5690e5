"""A complete training against PyTorch: Fashion-MNIST with `cnn`, epoch by epoch.

  scripts/bench training [--epochs 6] [--rounds 1] [--out build/bench-training] [--check]

Annulus trains on two ranks of one thread; PyTorch likewise (DistributedDataParallel over gloo), and on one rank of two
threads: the same network, global batch 128, SGD with momentum 0.9 and learning rate 0.02, an evaluation after each epoch.
Each uses its default initialization. They train one after the other, alternating over several rounds, each with another
seed; the tables have the medians of the rounds. Training time excludes start-up and evaluation.

Prints Markdown tables, and writes whole-training.md, whole-training.csv (every epoch of every round) and
whole-training.png. With --check it exits with 1 if a target is missed.
"""
import csv
import itertools
import json
import os
import shutil
import statistics

from benchmark import ANNULUS, drawing, give_up, number, run, say, table, write
from fashion_mnist import IMAGES, TRAINING_LIMIT, data_file, peer_epochs
from step_peers import Failed

CORES = len(os.sched_getaffinity(0))
GLOBAL_BATCH, LEARNING_RATE = 128, 0.02
GOAL = 0.9
US = "Annulus, 2 x 1"
# PyTorch's ranks, threads and settings: the fastest of cnn in bench step.
PEERS = {"PyTorch, 2 x 1": (2, 1, ["channels last", "eager"]), "PyTorch, 1 x 2": (1, 2, ["channels last", "eager"])}


def train_annulus(seed, options):
    """Returns a row for every epoch."""
    data, out = data_file(options.out), options.out / "run"
    shutil.rmtree(out, ignore_errors=True)
    _, failure = run(["mpirun", "-np", 2, "--bind-to", "core", ANNULUS, "train", "--data", data, "--model", "cnn",
                      "--batch", GLOBAL_BATCH // 2, "--threads", 1, "--epochs", options.epochs, "--lr", LEARNING_RATE,
                      "--seed", seed, "--out", out], TRAINING_LIMIT)
    if failure:
        give_up(f"annulus train: {failure}")
    return json.loads((out / "results.json").read_text())["epochs"]


def train_pytorch(who, seed, options):
    return peer_epochs("torch", *PEERS[who], batch=GLOBAL_BATCH, epochs=options.epochs, lr=LEARNING_RATE, seed=seed)


class Training:
    """The epochs of every round of one program."""

    def __init__(self):
        self.rounds = []

    def add(self, epochs):
        self.rounds.append([{key: epoch[key] for key in ("epoch", "seconds", "test_accuracy")} for epoch in epochs])

    def seconds(self):
        """Images/s of each epoch."""
        return [statistics.median(epoch["seconds"] for epoch in of_rounds) for of_rounds in zip(*self.rounds)]

    def speeds(self):
        return [IMAGES / seconds for seconds in self.seconds()]

    def accuracies(self):
        return [statistics.median(epoch["test_accuracy"] for epoch in of_rounds) for of_rounds in zip(*self.rounds)]

    def elapsed(self):
        """Seconds of training up to the end of each epoch."""
        return list(itertools.accumulate(self.seconds()))

    def seconds_to_goal(self):
        """The median of the rounds; None if one of them does not reach it."""
        reached = []
        for epochs in self.rounds:
            elapsed = itertools.accumulate(epoch["seconds"] for epoch in epochs)
            reached.append(next((s for s, epoch in zip(elapsed, epochs) if epoch["test_accuracy"] >= GOAL), None))
        return None if None in reached else statistics.median(reached)


def epoch_table(trainings):
    count = len(next(iter(trainings.values())).seconds())
    return table(["epoch", *trainings], [
        [str(epoch + 1),
         *(f"{number(t.speeds()[epoch])}; {100 * t.accuracies()[epoch]:.2f} %" for t in trainings.values())]
        for epoch in range(count)])


def summary_table(trainings):
    def goal(training):
        seconds = training.seconds_to_goal()
        return "not reached" if seconds is None else f"{seconds:.1f}"

    return table(["program, ranks x threads", "training, s", f"training to {100 * GOAL:.0f} %, s",
                  "last epoch's speed / second's", "test accuracy"],
                 [[who, f"{t.elapsed()[-1]:.1f}", goal(t), f"{t.speeds()[-1] / t.speeds()[1]:.2f}",
                   f"{100 * t.accuracies()[-1]:.2f} %"] for who, t in trainings.items()])


def targets(trainings):
    ours = trainings[US]
    yield US, f"s of training to {100 * GOAL:.0f} %", ours.seconds_to_goal(), "at most", 15
    yield US, "times the second epoch's speed in the last", ours.speeds()[-1] / ours.speeds()[1], "at least", 0.9
    best = min((t.elapsed()[-1] for who, t in trainings.items() if who != US), default=None)
    yield US, "times the fastest peer's training time", best and ours.elapsed()[-1] / best, "at most", 1.0


def write_csv(path, trainings):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["program", "round", "epoch", "seconds", "images_per_second", "test_accuracy"])
        for who, training in trainings.items():
            for count, epochs in enumerate(training.rounds, 1):
                for epoch in epochs:
                    writer.writerow([who, count, epoch["epoch"], f"{epoch['seconds']:.4f}",
                                     f"{IMAGES / epoch['seconds']:.6g}", f"{epoch['test_accuracy']:.4f}"])


def draw(path, trainings):
    pyplot = drawing()
    figure, (speed, accuracy) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for who, training in trainings.items():
        style = {"marker": "o", "label": who, "linewidth": 2.5 if who == US else 1.3}
        speed.plot(range(1, len(training.speeds()) + 1), training.speeds(), **style)
        accuracy.plot(training.elapsed(), [100 * a for a in training.accuracies()], **style)
    speed.set(xlabel="epoch", ylabel="images/s", ylim=(0, None), title="Training speed by epoch")
    accuracy.axhline(100 * GOAL, color="gray", linestyle=":")
    accuracy.set(xlabel="seconds of training", ylabel="test accuracy, %", xlim=(0, None), title="Test accuracy")
    for axes in (speed, accuracy):
        axes.grid(alpha=0.3)
    accuracy.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def add_options(parser):
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)


def check_options(parser, options):
    if options.epochs < 2 or options.rounds < 1:
        parser.error("--epochs must be 2 or more, and --rounds positive")
    if CORES < 2:
        parser.error(f"two ranks need 2 cores, and there are {CORES}")
    return ["torch"]


def main(options):
    trainings, failed = {who: Training() for who in (US, *PEERS)}, set()
    for count in range(1, options.rounds + 1):
        for who, training in trainings.items():
            if who in failed:
                continue
            try:
                training.add(train_annulus(count, options) if who == US else train_pytorch(who, count, options))
            except Failed as error:
                say(f"{who} is SKIPPED: {error}")
                failed.add(who)
                continue
            seconds = sum(epoch["seconds"] for epoch in training.rounds[-1])
            say(f"{who}, round {count} of {options.rounds}: {seconds:.1f} s of training")
    trainings = {who: training for who, training in trainings.items() if who not in failed}

    text = (f"Fashion-MNIST, `cnn`, global batch {GLOBAL_BATCH}, {options.epochs} epochs, medians of {options.rounds} "
            f"round(s).\n\n{summary_table(trainings)}\n\nImages/s and test accuracy by epoch:\n\n{epoch_table(trainings)}")
    print(text)
    write(options.out / "whole-training.md", text + "\n")
    write_csv(options.out / "whole-training.csv", trainings)
    try:
        draw(options.out / "whole-training.png", trainings)
    except ImportError as error:
        say(f"SKIPPED whole-training.png: {error}")
    return targets(trainings)
