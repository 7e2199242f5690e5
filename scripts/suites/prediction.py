"""The speed of several ranks on this machine, predicted from a single rank's step and the ranks' all-reduces, beside the measured
speed. Run on an idle machine.

  scripts/bench prediction [--ranks 2] [--models lenet,cnn,resnet20] [--batch 64] [--rounds 5] [--seconds 4] [--check]

In every round a single rank, all ranks, and their all-reduces are measured in turns; medians of the rounds. The prediction does
not know how ranks on the same memory slow each other down (scripts/study measures that). Prints a Markdown table. With --check
it exits with 1 if a prediction is off by more than 10 %.
"""
import json
import os
import statistics
import subprocess
import tempfile

from benchmark import ANNULUS, ROOT, give_up, number, run_annulus, say, table, words
from prediction import predict

SIZES = "64KiB,256KiB,1MiB"  # of all-reduces, as buckets have
IMAGES = {"lenet": "28x28x1", "cnn": "28x28x1", "mlp": "28x28x1"}
LIMIT = 300


def bench(ranks, *arguments):
    found, failure = run_annulus([ROOT / "scripts/launch", "-np", ranks], arguments, LIMIT, {"OMP_NUM_THREADS": "1"})
    return found if not failure else give_up(f"annulus bench {arguments[0]} on {ranks} ranks: {failure}")


def one_round(model, options):
    """Images/s of one rank, and those of all ranks: predicted and measured."""
    step = ["step", "--model", model, "--image", IMAGES.get(model, "32x32x3"), "--batch", options.batch, "--threads", 1, "--seconds",
            options.seconds]
    alone, together = bench(1, *step), bench(options.ranks, *step)
    sums = bench(options.ranks, "all-reduce", "--algorithms", "message-ring", "--sizes", SIZES, "--seconds", options.seconds / 10)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(sums, file)
        file.flush()
        try:
            row = predict(ANNULUS, alone["profile"], options.ranks, "--fit", file.name)
        except subprocess.CalledProcessError as error:  # a link that fits badly, as on a busy machine
            give_up(f"{model}: {error.stderr.strip()}")
        except subprocess.TimeoutExpired as error:
            give_up(f"{model}: {error}")
    return alone["rows"][0]["images_per_second"], row["images_per_second"], together["rows"][0]["images_per_second"]


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", type=words, default=["lenet", "cnn", "resnet20"])
    parser.add_argument("--batch", type=int, default=64, help="images per rank (64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)


def check_options(*_):
    return None


def main(options):
    rows, targets, load = [], [], os.getloadavg()[0]
    for model in options.models:
        rounds = []
        for count in range(1, options.rounds + 1):
            say(f"{model}: round {count} of {options.rounds}")
            rounds.append(one_round(model, options))
        ratio = statistics.median(predicted / measured for _, predicted, measured in rounds)
        rows.append([model, *(number(statistics.median(values)) for values in zip(*rounds)), f"{100 * (ratio - 1):+.1f} %",
                     " to ".join(f"{100 * (end([p / m for _, p, m in rounds]) - 1):+.1f}" for end in (min, max)) + " %"])
        targets.append((f"{model} on {options.ranks} ranks", "relative error of the prediction", abs(ratio - 1), "at most", 0.1))
    print(f"The speed of {options.ranks} ranks of one thread, predicted from one rank, {options.batch} images per rank; medians of "
          f"{options.rounds} rounds, load average {load:.1f} at the beginning.\n")
    print(table(["model", "one rank, images/s", f"{options.ranks} ranks predicted", "measured", "prediction is off by", "range"], rows))
    return targets
