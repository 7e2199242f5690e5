"""Does the gradient-noise scale predict how many steps a batch size needs? Fashion-MNIST to 85 % test accuracy.

  scripts/bench batch [--model lenet] [--batches 32,...,4096] [--seeds 3] [--out build/bench-batch] [--check]

For each batch size, finds the learning rate that needs the fewest steps (median of the seeds), by steps of a factor of 2
from the square-root rule (--lr is that of --noise-batch). The training with --noise-batch, in four
accumulated parts, also measures the noise scale, and the steps of its batch; from these two numbers alone

  steps(B) = S_min (1 + noise / B)

predicts all other batches (McCandlish et al. 2018). SGD with momentum 0.9 and a constant rate. Trainings that were done
are not repeated. Prints a Markdown table; with --check it exits with 1 if a prediction is off by more than 20 %.
"""
import json
import shutil
import statistics

from benchmark import ANNULUS, number, run, say, table, words
from fashion_mnist import data_file
from scaling.time_to_loss import read_noise, steps

LIMIT = 1800        # seconds of a training
MOST_SAMPLES = 4e6  # of a training that does not reach the goal
PARTS = 4
ALLOWED = 0.2


def integers(text):
    return [int(word) for word in words(text)]


def add_options(parser):
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batches", type=integers, default=[32, 64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--noise-batch", type=int, default=256, help="measures the noise (256)")
    parser.add_argument("--lr", type=float, default=0.02, help="where the search begins, for --noise-batch (0.02)")
    parser.add_argument("--goal", type=float, default=0.85, help="test accuracy (0.85)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)


def check_options(*_):
    return None


def crossing(evaluations, goal):
    """The number of steps at which the accuracy reaches the goal, interpolated; infinite if it does not."""
    before = (0, 0.0)
    for evaluation in evaluations:
        here = evaluation["step"], evaluation["test_accuracy"]
        if here[1] >= goal:
            return before[0] + (here[0] - before[0]) * (goal - before[1]) / (here[1] - before[1])
        before = here
    return float("inf")


def train(options, data, batch, rate, seed):
    """The folder of a training until the goal, unless it was done before."""
    out = options.out / f"{options.model}-{batch}-{rate:.5g}-{seed}"
    if not (out / "results.json").exists() or json.loads((out / "results.json").read_text())["status"] != "complete":
        shutil.rmtree(out, ignore_errors=True)
        parts = ["--accumulate", PARTS, "--metrics-every", 1] if batch == options.noise_batch else ["--metrics", "none"]
        every = max(2, min(40, 8192 // batch))
        _, failure = run([ANNULUS, "train", "--data", data, "--model", options.model, "--batch", batch, "--lr", rate,
                          "--threads", options.threads, "--seed", seed, *parts, "--until", f"accuracy={options.goal}",
                          "--eval-every", every, "--epochs", 10000, "--max-steps", int(MOST_SAMPLES / batch), "--out", out],
                         LIMIT)
        if failure:
            say(f"batch {batch}, rate {rate:.4g}: {failure}")  # such as a loss that is not finite
            out.mkdir(exist_ok=True)
            (out / "results.json").write_text('{"status": "complete", "evaluations": []}')
    return out


def steps_of(options, data, batch, rate, seed):
    found = crossing(json.loads((train(options, data, batch, rate, seed) / "results.json").read_text())["evaluations"],
                     options.goal)
    say(f"batch {batch}, rate {rate:.4g}, seed {seed}: {found:.0f} steps")
    return found


def best_rate(options, data, batch):
    """The rate that needs the fewest steps, and these for each seed."""
    def trial(rate):
        return rate, [steps_of(options, data, batch, rate, seed) for seed in range(1, options.seeds + 1)]

    best = trial(options.lr * (batch / options.noise_batch) ** 0.5)
    for factor in (2, 0.5):
        while statistics.median((next_one := trial(best[0] * factor))[1]) < statistics.median(best[1]):
            best = next_one
    return best


def main(options):
    data, found, rates = data_file(options.out), {}, {}
    for batch in sorted({*options.batches, options.noise_batch}):
        rates[batch], found[batch] = best_rate(options, data, batch)
    known = options.noise_batch
    runs = [train(options, data, known, rates[known], seed) for seed in range(1, options.seeds + 1)]
    noise = statistics.median(read_noise(out / "results.json")["scale"] for out in runs)
    fewest = statistics.median(found[known]) / steps(known, noise)
    rows, targets = [], []
    for batch, of_seeds in found.items():
        measured, predicted = statistics.median(of_seeds), fewest * steps(batch, noise)
        error = predicted / measured - 1
        rows.append([str(batch), f"{rates[batch]:.4g}", f"{number(measured)} [{number(min(of_seeds))}, {number(max(of_seeds))}]",
                     number(predicted), "its own" if batch == known else f"{100 * error:+.1f} %"])
        if batch != known:
            targets.append((f"batch {batch}", "error of the predicted steps", abs(error), "at most", ALLOWED))
    print(table(["batch", "learning rate", "steps measured", "predicted", "error"], rows))
    print(f"\n{options.model} to {100 * options.goal:g} % on Fashion-MNIST; medians of {options.seeds} seeds, in brackets the "
          f"smallest and largest. Noise scale at batch {known}: {number(noise)} images.\n")
    return targets
