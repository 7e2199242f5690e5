"""CIFAR-10 to 94 %: scripts/recipes/cifar10.toml with several seeds, against PyTorch.

  scripts/bench cifar DATA [--seeds 10] [--epochs 10] [--layouts 2x1,1x2] [--out build/bench-cifar] [--check]

DATA is a data file with CIFAR-10's pixels: scripts/import-arrays cifar10.h5 cifar-10-batches-bin --from cifar, or of a
folder of image files annulus import cifar10.h5 FOLDER --store pixels --size 32x32. Annulus trains with each of the layouts
(ranks x threads); PyTorch runs peers/torch_cifar.py with all cores, eager and compiled, for which the targets are, and with
bf16 by autocast. All have the same network, images, batches and rates, and train in turns, a seed after the other.

The tables have the mean accuracy with its 95 % interval (Student's), and the medians of the seconds from the start of the
process to the end of the evaluation, and without start-up (with PyTorch's compilation, which happens in the first step).
Prints Markdown tables, and writes cifar.md and cifar.csv (every training). With --check it exits with 1 if a target is missed.
"""
import csv
import json
import math
import os
import pathlib
import shutil
import statistics
import time

from benchmark import ANNULUS, ROOT, give_up, pinned_mpirun, run, say, table, write
from step_peers import Failed, start_ranks

CORES = len(os.sched_getaffinity(0))
LIMIT = 7200  # seconds for a training
GOAL, NOISE = 0.94, 0.001  # re-compressed images may cost accuracy: of the peer's mean, at most NOISE less
# Student's t for 95 %, by degrees of freedom; beyond, the last.
STUDENT = [math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 1.96]
PEERS = {"PyTorch, eager": ["channels last", "eager"], "PyTorch, compiled": ["channels last", "compiled"],
         "PyTorch, eager, bf16": ["channels last", "eager", "bf16"]}
SAME_PRECISION = [who for who, settings in PEERS.items() if "bf16" not in settings]  # as Annulus on CPUs


def name_of(layout):
    return f"Annulus, {layout[0]} x {layout[1]}"


def save_arrays(data, folder):
    """Writes the splits as files that PyTorch's program reads."""
    import h5py  # installed by scripts/setup
    import numpy as np
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(data) as file:
        for split in ("train", "test"):
            if f"{split}/images" not in file or file[f"{split}/images"].shape[1:] != (32, 32, 3):
                give_up(f"{data}: has no {split} images of 32x32x3 pixels; import them with --store pixels --size 32x32")
            np.savez(folder / f"{split}.npz", images=file[f"{split}/images"][()], labels=file[f"{split}/labels"][()])


def train_annulus(layout, seed, options):
    ranks, threads = layout
    out = options.out / "run"
    shutil.rmtree(out, ignore_errors=True)
    begin = time.monotonic()
    _, failure = run([*pinned_mpirun(ranks, threads), ANNULUS, "train", "--config", ROOT / "scripts/recipes/cifar10.toml",
                      "--data", options.data, "--epochs", options.epochs, "--warmup", f"{0.23 * options.epochs}:0.2",
                      "--threads", threads, "--checkpoint-every", "end", "--seed", seed, "--out", out], LIMIT)
    if failure:
        raise Failed(f"annulus train: {failure}")
    results = json.loads((out / "results.json").read_text())
    training = sum(epoch["seconds"] for epoch in results["epochs"])
    return {"accuracy": results["test_accuracy"], "whole": time.monotonic() - begin, "training": training,
            "evaluation": results["evaluation_seconds"]}


def train_pytorch(settings, seed, options):
    begin = time.monotonic()
    started = start_ranks("torch", "torch_cifar.py",
                          [options.out / "arrays", "--seed", seed, "--epochs", options.epochs], 1, CORES, settings)
    try:
        end = begin + LIMIT
        started[0].answer(end)
        epochs = [started[0].answer(end) for _ in range(options.epochs)]
        found = started[0].answer(end)
    finally:
        for rank in started:
            rank.close()
    return {"accuracy": found["test_accuracy"], "whole": time.monotonic() - begin,
            "training": sum(epoch["seconds"] for epoch in epochs), "evaluation": found["evaluation_seconds"]}


def interval(values):
    """Half of the mean's 95 % interval."""
    if len(values) < 2:
        return math.inf
    student = STUDENT[min(len(values) - 1, len(STUDENT) - 1)]
    return student * statistics.stdev(values) / math.sqrt(len(values))


def median(rows, *parts):
    return statistics.median(sum(row[part] for part in parts) for row in rows)


def summary(results):
    def accuracy(rows):
        values = [100 * row["accuracy"] for row in rows]
        half = interval(values)
        return f"{statistics.mean(values):.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else "") + " %"

    return table(["program", "seeds", "accuracy, mean", "start to end, s", "training and evaluation, s", "evaluation, s"], [
        [who, str(len(rows)), accuracy(rows), f"{median(rows, 'whole'):.1f}", f"{median(rows, 'training', 'evaluation'):.1f}",
         f"{median(rows, 'evaluation'):.1f}"] for who, rows in results.items()])


def targets(results):
    ours = {who: rows for who, rows in results.items() if who not in PEERS}
    peers = {who: rows for who, rows in results.items() if who in SAME_PRECISION}
    peer_accuracy = statistics.mean(row["accuracy"] for rows in peers.values() for row in rows) if peers else None
    goal = GOAL if peer_accuracy is None else min(GOAL, peer_accuracy - NOISE)
    fastest_peer = min((median(rows, "training", "evaluation") for rows in peers.values()), default=None)
    for who, rows in ours.items():
        yield who, "% mean accuracy", 100 * statistics.mean(row["accuracy"] for row in rows), "at least", 100 * goal
        speed = fastest_peer and fastest_peer / median(rows, "training", "evaluation")
        yield who, "times PyTorch's speed", speed, "at least", 2
    times = [median(rows, "training", "evaluation") for rows in ours.values()]
    if len(times) > 1:
        yield "layouts", "slowest layout's time / fastest's", max(times) / min(times), "at most", 1.05


def write_csv(path, results):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["program", "seed", "test_accuracy", "start_to_end_seconds", "training_seconds", "evaluation_seconds"])
        for who, rows in results.items():
            for seed, row in enumerate(rows, 1):
                writer.writerow([who, seed, f"{row['accuracy']:.4f}", *(f"{row[part]:.2f}" for part in ("whole", "training", "evaluation"))])


def parse_layouts(text):
    return [tuple(map(int, layout.split("x"))) for layout in text.split(",")]


def add_options(parser):
    parser.add_argument("data", type=pathlib.Path, help="data file")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--layouts", type=parse_layouts, default=[(2, 1), (1, 2)], help="ranks x threads of Annulus")
    parser.add_argument("--programs", choices=("all", "annulus", "pytorch"), default="all")


def check_options(parser, options):
    if options.seeds < 1 or options.epochs < 1:
        parser.error("--seeds and --epochs must be positive")
    if not options.data.is_file():
        parser.error(f"{options.data}: no such file")
    if max(ranks * threads for ranks, threads in options.layouts) > CORES:
        parser.error(f"there are {CORES} cores")
    return ["torch"]


def main(options):
    trainings = {}
    if options.programs != "pytorch":
        trainings.update({name_of(layout): (train_annulus, layout) for layout in options.layouts})
    if options.programs != "annulus":
        save_arrays(options.data, options.out / "arrays")
        trainings.update({who: (train_pytorch, settings) for who, settings in PEERS.items()})
    results, failed = {who: [] for who in trainings}, set()
    for seed in range(1, options.seeds + 1):
        for who, (train, how) in trainings.items():
            if who in failed:
                continue
            try:
                row = train(how, seed, options)
            except Failed as error:
                say(f"{who} is SKIPPED: {error}")
                failed.add(who)
                continue
            results[who].append(row)
            say(f"{who}, seed {seed} of {options.seeds}: {100 * row['accuracy']:.2f} % after {row['whole']:.1f} s")
            write_csv(options.out / "cifar.csv", results)
    results = {who: rows for who, rows in results.items() if rows and who not in failed}
    text = f"CIFAR-10, `cifar10.toml`, {options.epochs} epochs, {options.seeds} seed(s).\n\n{summary(results)}"
    print(text)
    write(options.out / "cifar.md", text + "\n")
    return targets(results)
