"""A small language model against PyTorch: nanoGPT's training on a CPU, of Shakespeare's characters or any other text.

  scripts/bench text [--text FILE] [--steps 2000] [--seeds 3] [--muon RATE] [--nanogpt FOLDER]
                     [--out build/bench-text] [--check]

The settings are those of nanoGPT (github.com/karpathy/nanoGPT, README.md, "I only have a macbook"): 4 blocks of 4
heads, 128 wide, 12 windows of 64 characters a step, AdamW. What differs for both programs: tokens are bytes, linear
layers and norms have biases, GELU is the tanh approximation, windows are not drawn with replacement, and evaluations
cover all of the validation text. PyTorch runs a program of our own, peers/torch_text.py. The text is a file, of which
nine tenths are for training, or the folder of `scripts/demo-text`. Of both splits only the beginning is used, if that
is enough.

First finds the fastest ranks and settings of each program, by short trainings; then both train in turns, with several
seeds. With --muon RATE Annulus also trains with Muon, for half of the epochs, to compare the seconds to the loss
of PyTorch's AdamW. With --nanogpt, a clone of nanoGPT's repository, its own train.py also trains once, in PyTorch as its README says
for a CPU; it has one seed, and estimates the validation loss from random windows. Prints Markdown tables, and writes
text-training.md and text-training.csv (every evaluation). Training time excludes start-up, compiling and evaluation.
With --check it exits with 1 if a target is missed.
"""
import array
import csv
import json
import os
import pathlib
import pickle
import re
import shutil
import statistics
import time

from benchmark import ANNULUS, ROOT, give_up, number, pinned_mpirun, plural, run, say, table, write
from step_peers import Failed, start_ranks

CORES = len(os.sched_getaffinity(0))
LIMIT = 1800  # time limit of one training, in seconds
LENGTH, BATCH = 64, 12
SETTINGS = {"length": LENGTH, "batch": BATCH, "size": [4, 4, 128], "lr": 1e-3, "lr_end": 1e-4, "betas": [0.9, 0.99],
            "weight_decay": 0.1, "clip_norm": 1}
WARMUP, EVALUATIONS = 0.05, 8  # share of the steps; evaluations of a training
VALIDATION_WINDOWS, TRIAL_STEPS = 1000, 100
# Ranks, threads and PyTorch's setting; of Annulus None.
LAYOUTS = [(2, 1), (1, 2)]
CANDIDATES = {"Annulus": [(*layout, None) for layout in LAYOUTS],
              "PyTorch": [(*layout, setting) for layout in LAYOUTS for setting in ("eager", "compiled")]}


MUON = "Annulus with Muon"


def spoken(program, candidate):
    ranks, threads, setting = candidate
    return f"{program}, {ranks} x {threads}" + (f", {setting}" if setting else "")


def read_text(path):
    """Returns the training and the validation text."""
    if path.is_dir():
        splits = [b"".join(file.read_bytes() for file in sorted((path / split).glob("*")))
                  for split in ("train", "test")]
    elif path.is_file():
        text = path.read_bytes()
        splits = [text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]]
    else:
        give_up(f"{path}: no such file; give a text with --text, or run scripts/demo-text")
    if min(map(len, splits)) < LENGTH * BATCH:
        give_up(f"{path}: the text is too short")
    return splits


class Comparison:
    """The text, cut so that epochs have whole numbers of steps, and the trainings on it."""

    def __init__(self, options):
        self.options, self.folder = options, options.out
        train, validation = read_text(options.text)
        windows = options.steps * BATCH
        self.epochs = next((e for e in range(1, options.steps + 1)
                            if options.steps % e == 0 and windows // e * LENGTH <= len(train)), None)
        if self.epochs is None:
            give_up(f"{options.text}: the text is too short")
        if options.muon and self.epochs % 2:
            give_up(f"--muon needs an even number of epochs, and {options.steps} steps are {self.epochs}")
        texts = {"train": train[:windows // self.epochs * LENGTH],
                 "test": validation[:min(len(validation) // LENGTH, VALIDATION_WINDOWS) * LENGTH]}
        self.sizes = {split: len(text) for split, text in texts.items()}
        self.files = {}
        shutil.rmtree(self.folder / "text", ignore_errors=True)
        for split, text in texts.items():
            self.files[split] = self.folder / "text" / split / "text.txt"
            self.files[split].parent.mkdir(parents=True)
            self.files[split].write_bytes(text)
        self.data = self.folder / "text.h5"
        self.annulus("import", self.data, self.folder / "text", "--from", "text")

    @staticmethod
    def annulus(*arguments, start=()):
        _, failure = run([*start, ANNULUS, *arguments], LIMIT)
        if failure:
            raise Failed(f"annulus {arguments[0]}: {failure}")

    def train_annulus(self, candidate, seed, steps, every, rate=None):
        """Returns (step, loss) of every evaluation, and the seconds of training. `rate`: of Muon; None: AdamW."""
        ranks, threads, _ = candidate
        out, s = self.folder / "run", SETTINGS
        shutil.rmtree(out, ignore_errors=True)
        optimizer = ["adamw,beta1={},beta2={}".format(*s["betas"]), "--weight-decay", s["weight_decay"], "--clip-norm",
                     s["clip_norm"], "--lr", s["lr"], "--lr-end", s["lr_end"]]
        epochs = self.epochs
        if rate is not None:
            optimizer, epochs = ["muon", "--weight-decay", 0.01, "--lr", rate], epochs // 2
        self.annulus("train", "--data", self.data, "--model", "nanogpt-cpu", "--length", LENGTH, "--global-batch",
                     BATCH, "--threads", threads, "--epochs", epochs, "--max-steps", steps, "--eval-every", every,
                     "--checkpoint-every", "end", "--schedule", "cosine", "--warmup", WARMUP * epochs, "--seed", seed, "--out", out,
                     "--optimizer", *optimizer, start=pinned_mpirun(ranks, threads))
        results = json.loads((out / "results.json").read_text())
        return ([(e["step"], e["test_loss"]) for e in results["evaluations"]],
                steps * BATCH * LENGTH / results["train_tokens_per_second"])

    def train_pytorch(self, candidate, seed, steps, every):
        ranks, threads, setting = candidate
        file = self.folder / "settings.json"
        write(file, json.dumps({**SETTINGS, "steps": self.options.steps, "warmup": WARMUP * self.options.steps,
                                "max_steps": steps, "eval_every": every}))
        started = start_ranks("torch", "torch_text.py", [self.files["train"], self.files["test"], file, "--seed", seed],
                              ranks, threads, [setting])
        end = time.monotonic() + LIMIT
        try:
            answers = [started[0].answer(end) for _ in range(steps // every)]
        finally:
            for rank in started:
                rank.close()
        self.version = answers[0]["version"]
        return [(answer["step"], answer["loss"]) for answer in answers], answers[-1]["seconds"]

    def train(self, program, candidate, seed, steps, every):
        if program == MUON:
            return self.train_annulus(candidate, seed, steps // 2, every, self.options.muon)
        return (self.train_annulus if program == "Annulus" else self.train_pytorch)(candidate, seed, steps, every)

    def train_nanogpt(self, repository, steps):
        """Returns the tokens per second of nanoGPT's own script, in its median step, and its last validation loss."""
        folder, data = self.folder / "nanogpt", self.folder / "nanogpt/data/text"
        shutil.rmtree(folder, ignore_errors=True)
        data.mkdir(parents=True)
        for split, name in (("train", "train.bin"), ("test", "val.bin")):
            (data / name).write_bytes(array.array("H", list(self.files[split].read_bytes())).tobytes())
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))
        for name in ("train.py", "model.py", "configurator.py", "config"):
            (folder / name).symlink_to(repository.resolve() / name)
        out, failure = run(["env", "-C", folder, ROOT / "build/peers/torch/bin/python", "train.py",
                            "config/train_shakespeare_char.py", "--dataset=text", "--device=cpu", "--compile=False",
                            "--log_interval=1", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0",
                            f"--block_size={LENGTH}", f"--batch_size={BATCH}", f"--max_iters={steps}",
                            f"--lr_decay_iters={steps}", f"--eval_interval={steps}",
                            f"--eval_iters={VALIDATION_WINDOWS // BATCH}"], LIMIT, {"OMP_NUM_THREADS": str(CORES)})
        if failure:
            raise Failed(f"{repository}/train.py: {failure}")
        milliseconds = [float(value) for value in re.findall(r"^iter .* time ([0-9.]+)ms", out, re.MULTILINE)]
        return (BATCH * LENGTH / statistics.median(milliseconds) * 1000,
                float(re.findall(r"val loss ([0-9.]+)", out)[-1]))

    def fastest(self, program):
        """Returns the ranks, threads and setting with the highest speed."""
        speeds = {}
        for candidate in CANDIDATES[program]:
            try:
                _, seconds = self.train(program, candidate, 1, TRIAL_STEPS, TRIAL_STEPS)
            except Failed as error:
                say(f"{spoken(program, candidate)} is SKIPPED: {error}")
                continue
            speeds[candidate] = TRIAL_STEPS * BATCH * LENGTH / seconds
            say(f"{spoken(program, candidate)}: {number(speeds[candidate])} tokens/s")
        return max(speeds, key=speeds.get, default=None)


class Training:
    """The evaluations and times of every seed of one program."""

    def __init__(self, name):
        self.name, self.losses, self.seconds, self.elapsed = name, {}, [], []

    def add(self, evaluations, seconds, elapsed):
        for step, loss in evaluations:
            self.losses.setdefault(step, []).append(loss)
        self.seconds.append(seconds)
        self.elapsed.append(elapsed)

    def mean(self, step):
        return statistics.mean(self.losses[step])

    def standard_error(self, step):
        return statistics.stdev(self.losses[step]) / len(self.losses[step]) ** 0.5

    def loss_text(self, step):
        found = self.losses[step]
        return f"{self.mean(step):.4f} ({min(found):.4f} to {max(found):.4f})"


def difference(ours, theirs, step):
    """Returns the difference of the means over seeds, and its standard error."""
    return (ours.mean(step) - theirs.mean(step),
            (ours.standard_error(step) ** 2 + theirs.standard_error(step) ** 2) ** 0.5)


def is_within_noise(ours, theirs, step):
    of_means, error = difference(ours, theirs, step)
    return abs(of_means) <= 2 * error


def speed_ratio(ours, theirs):
    return statistics.median(theirs.seconds) / statistics.median(ours.seconds)


def loss_table(ours, theirs):
    rows = []
    for step in ours.losses:
        of_means, error = difference(ours, theirs, step)
        rows.append([str(step), ours.loss_text(step), theirs.loss_text(step), f"{of_means:+.4f}", f"{error:.4f}"])
    return table(["step", ours.name, theirs.name, "difference", "its standard error"], rows)


def speed_table(trainings, tokens):
    return table(["program, ranks x threads", "tokens/s", "training, s", "with start-up and evaluations, s"],
                 [[t.name, number(tokens / statistics.median(t.seconds)), f"{statistics.median(t.seconds):.1f}",
                   f"{statistics.median(t.elapsed):.1f}"] for t in trainings])


def verdict(ours, theirs):
    last = max(ours.losses)
    within = [step for step in ours.losses if is_within_noise(ours, theirs, step)]
    of_means, error = difference(ours, theirs, last)
    return (f"After {last} steps the mean validation losses differ by {of_means:+.4f}, which is "
            f"{'' if last in within else 'not '}within the noise of seeds (2 standard errors: {2 * error:.4f}). Of all "
            f"{len(ours.losses)} evaluations {len(within)} are. Annulus trains "
            f"{speed_ratio(ours, theirs):.2f} times as fast.")


def targets(ours, theirs):
    last = max(ours.losses)
    of_means, error = difference(ours, theirs, last)
    yield "loss", "standard errors between the last losses", abs(of_means) / error, "at most", 2
    yield "speed", "times PyTorch's", speed_ratio(ours, theirs), "at least", 2


def muon_verdict(muon, theirs):
    step, goal = max(muon.losses), theirs.mean(max(theirs.losses))
    return (f"With Muon Annulus has the loss {muon.loss_text(step)} after {step} steps in {statistics.median(muon.seconds):.1f} s: "
            f"{1 / speed_ratio(muon, theirs):.2f} of the seconds in which PyTorch's AdamW reaches {goal:.4f}.")


def write_csv(path, trainings):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["program", "seed", "step", "validation_loss", "training_seconds", "total_seconds"])
        for t in trainings:
            for seed, (seconds, elapsed) in enumerate(zip(t.seconds, t.elapsed)):
                for step, losses in t.losses.items():
                    writer.writerow([t.name, seed + 1, step, f"{losses[seed]:.6f}", f"{seconds:.3f}", f"{elapsed:.3f}"])


def add_options(parser):
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "build/demo-text/text",
                        help="a text file, or the folder that scripts/demo-text writes (default)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--muon", type=float, metavar="RATE", help="also train with Muon, for half of the epochs")
    parser.add_argument("--nanogpt", type=pathlib.Path, metavar="FOLDER", help="a clone of nanoGPT's repository")


def check_options(parser, options):
    if options.steps < TRIAL_STEPS or options.steps % EVALUATIONS != 0:
        parser.error(f"--steps must be {TRIAL_STEPS} or more, and a multiple of {EVALUATIONS}")
    if options.seeds < 2:
        parser.error("--seeds must be 2 or more")
    if options.nanogpt and not (options.nanogpt / "train.py").is_file():
        parser.error(f"{options.nanogpt} has no train.py; give a clone of nanoGPT's repository")
    if CORES < 2:
        parser.error(f"two ranks need 2 cores, and there are {CORES}")
    return ["torch"]


def main(options):
    try:
        comparison = Comparison(options)
        chosen = {program: comparison.fastest(program) for program in CANDIDATES}
        for program, candidate in chosen.items():
            if candidate is None:
                give_up(f"{program} cannot be measured")
        if options.muon:
            chosen[MUON] = chosen["Annulus"]
        trainings = {program: Training(spoken(program, candidate)) for program, candidate in chosen.items()}
        for seed in range(1, options.seeds + 1):
            for program, training in trainings.items():
                begin = time.monotonic()
                evaluations, seconds = comparison.train(program, chosen[program], seed, options.steps,
                                                        options.steps // EVALUATIONS)
                training.add(evaluations, seconds, time.monotonic() - begin)
                say(f"{training.name}, seed {seed} of {options.seeds}: {seconds:.1f} s, loss {evaluations[-1][1]:.4f}")
        nanogpt = comparison.train_nanogpt(options.nanogpt, options.steps) if options.nanogpt else None
    except Failed as error:
        give_up(str(error))

    ours, theirs, *muon = trainings.values()
    sizes = comparison.sizes
    text = (f"`nanogpt-cpu`, {options.steps} steps of {BATCH} windows of {LENGTH} bytes, {sizes['train']:,} bytes for "
            f"training ({plural(comparison.epochs, 'epoch')}) and {sizes['test']:,} for validation, {options.seeds} "
            f"seeds, PyTorch {comparison.version}. Validation loss (nats per token), means of the seeds with the "
            f"smallest and the largest:\n\n{loss_table(ours, theirs)}\n\nMedians of the seeds:\n\n"
            f"{speed_table((ours, theirs), options.steps * BATCH * LENGTH)}\n\n{verdict(ours, theirs)}")
    text += "".join(" " + muon_verdict(one, theirs) for one in muon)
    if nanogpt:
        speed, loss = nanogpt
        ratio = options.steps * BATCH * LENGTH / statistics.median(ours.seconds) / speed
        text += (f" nanoGPT's own train.py, eager on {CORES} threads, trains {number(speed)} tokens/s; Annulus "
                 f"{ratio:.2f} times as many. Its last validation loss is {loss:.4f}, from random windows.")
    print(text)
    write(options.out / "text-training.md", text + "\n")
    write_csv(options.out / "text-training.csv", trainings.values())
    return targets(ours, theirs)
