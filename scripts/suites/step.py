"""Training images/s, or tokens/s, and memory against PyTorch and TensorFlow: same networks and batches.

  scripts/bench step [--models lenet,gpt2:1024] [--runs 1xCORES,1x1,2x1] [--peers torch,tensorflow] [--batch N]
                     [--rounds 5] [--seconds 2] [--from RUN] [--scaling] [--csv FILE] [--check]

The models are Annulus's, and networks of torchvision, which only PyTorch has: Annulus trains their ONNX files, which are
exported to build/bench-step/. A run is RANKSxTHREADS. On several ranks the peers use DistributedDataParallel over gloo
and MultiWorkerMirroredStrategy's ring, each with the fastest of several settings, which are tried once
(scripts/peers/step_peers.py); start-up and compilation are not counted. A peer that cannot be installed or fails is skipped with a message. With --from, Annulus
starts from a run's checkpoint instead of a new network.

A machine's speed drifts, so all programs alternate, and results are ratios of medians. Memory is the largest rank's peak.
With --scaling two ranks are also compared by the fastest step of all rounds, with arithmetic in registers in steps of the
same length (annulus bench noise), and with their own speed without all-reduces: this separates our overhead from
disturbances of single cores. Prints Markdown tables; with --check it exits with 1 if a target is missed.
"""
import contextlib
import csv
import os
import pathlib
import statistics
import subprocess
import sys

from benchmark import MIB, ROOT, give_up, number, pinned_mpirun, run_annulus, say, table, words
from step_peers import FRAMEWORKS, Failed, Fastest
from step_rank import GPTS, TORCHVISION, TRANSFORMERS, samples, unit

CORES = len(os.sched_getaffinity(0))
LIMIT = 1800  # time limit of one program, in seconds

# Batch per rank, and Annulus's options for the images.
SMALL = ["--image", "28x28x1"]
LARGE = ["--image", "224x224x3", "--classes", "1000"]
MODELS = {"lenet": (64, SMALL), "cnn": (64, SMALL), "resnet20": (64, ["--image", "32x32x3"]),
          "resnet18": (16, LARGE), "resnet50": (16, LARGE), **{name: (8, LARGE) for name in TRANSFORMERS},
          **{name: (16, []) for name in TORCHVISION},
          "gpt2:1024": (1, []), "gpt2:64": (4, []), "nanogpt:256": (8, [])}
US, REGISTERS, FASTEST = "Annulus", "arithmetic in registers", "Annulus, fastest steps"
GPT_SPEED = {"gpt2:1024": 1.25, "gpt2:64": 1.5}  # times the best peer's
SPEED, MEMORY, FLOPS = "images_per_second", "peak_memory_bytes", "flops_per_second"


def of_model(name):
    """Annulus's options for a model."""
    if name in GPTS:
        return ["--model", name.split(":")[0], "--length", samples(name)]
    if name not in TORCHVISION:
        return ["--model", name, *MODELS[name][1]]
    file = ROOT / "build/bench-step" / f"{name}.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([ROOT / "build/peers/torch/bin/python", ROOT / "scripts/peers/export_network.py", name, file],
                       check=True, stdout=sys.stderr)
    return ["--model", file]


def parse_run(text):
    ranks, threads = map(int, text.split("x"))
    if ranks < 1 or threads < 1:
        raise ValueError
    return ranks, threads


class Measured:
    """The measurements of one model and one run in every round."""

    def __init__(self, model, batch, ranks, threads, checkpoint):
        self.model, self.batch, self.ranks, self.threads = model, batch, ranks, threads
        self.of_model = ["--from", checkpoint] if checkpoint else of_model(model)
        self.rounds = {US: []}  # program -> its rows; peers in the order of --peers
        self.settings = {}      # peer's title -> its fastest settings, and its version
        self.arithmetic = []    # rows of --scaling
        self.shares = []        # share of the speed without all-reduces, in each round of --scaling

    def name(self):
        return f"{self.model}, {self.ranks} x {self.threads}"

    def bench(self, *arguments, seconds):
        result, failure = run_annulus(pinned_mpirun(self.ranks, self.threads), [*arguments, "--threads", self.threads, "--seconds", seconds], LIMIT,
                                      {"OMP_NUM_THREADS": str(self.threads)})
        if failure:
            give_up(f"annulus bench {' '.join(map(str, arguments))}: {failure}")
        return result

    def step(self, all_reduce, seconds):
        return self.bench("step", *self.of_model, "--batch", self.batch, "--all-reduce", all_reduce, seconds=seconds)

    def annulus(self, seconds):
        result = self.step("auto", seconds)
        row = result["rows"][0]
        return {**row, SPEED: row[f"{unit(self.model)}_per_second"], MEMORY: result[MEMORY]}

    def measure(self, peers, rounds, seconds, scaling):
        with contextlib.ExitStack() as running:
            candidates = {US: self.annulus}
            for peer in peers:
                if self.model in (*TRANSFORMERS, *TORCHVISION, *GPTS) and peer != "torch":
                    continue
                title = FRAMEWORKS[peer].title
                try:
                    fastest = Fastest(peer, self.model, self.batch, self.ranks, self.threads)
                except Failed as error:
                    say(f"{title} is SKIPPED in {self.name()}: {error}")
                    continue
                running.callback(fastest.close)
                candidates[title] = fastest.measure
                self.settings[title] = f"{title} {fastest.version}: {', '.join(fastest.settings)}"
                self.rounds[title] = []
            for count in range(1, rounds + 1):
                for who, measure in list(candidates.items()):
                    try:
                        self.rounds[who].append(measure(seconds))
                    except Failed as error:
                        say(f"{who} is SKIPPED in {self.name()} starting with round {count}: {error}")
                        del candidates[who], self.rounds[who], self.settings[who]
                if scaling:
                    self.add_scaling(seconds)
                say(f"{self.name()}, round {count} of {rounds}, {unit(self.model)}/s: "
                    + ", ".join(f"{who} {number(rows[-1][SPEED])}" for who, rows in self.rounds.items()))

    def add_scaling(self, seconds):
        rows = self.bench("noise", "--step", 1e3 * self.fastest_step(), seconds=seconds)["rows"]
        self.arithmetic.append(next(row[FLOPS] for row in rows if row["pace"] == "in step"))
        if self.ranks > 1:
            auto, none = (row[SPEED] for row in self.step("auto,none", seconds)["rows"])
            self.shares.append(auto / none)

    def speed(self, who):
        return statistics.median(row[SPEED] for row in self.rounds[who]) if who in self.rounds else None

    def memory(self, who):
        return statistics.median(row[MEMORY] for row in self.rounds[who]) if who in self.rounds else None

    def fastest_step(self):
        return min(row["min_seconds"] for row in self.rounds[US])

    def peers(self):
        return [who for who in self.rounds if who != US]

    def ratio(self):
        """Our speed / the fastest peer's."""
        return self.speed(US) / max(map(self.speed, self.peers())) if self.peers() else None

    def share_of_memory(self):
        """Our memory / the smallest peer's."""
        return self.memory(US) / min(map(self.memory, self.peers())) if self.peers() else None


def speed_table(all_measured, titles):
    who = [US, *titles]
    return table(
        ["model", "batch per rank", "ranks x threads", *who, "times the best peer", *(f"{w}, MiB" for w in who)],
        [[m.model, str(m.batch), f"{m.ranks} x {m.threads}", *(cell(m.speed(w), number) for w in who),
          cell(m.ratio(), "{:.2f}".format), *(cell(m.memory(w), lambda v: f"{v / MIB:,.0f}") for w in who)]
         for m in all_measured])


def cell(value, write):
    return "-" if value is None else write(value)


def scalings(all_measured):
    """Pairs of (several ranks, one rank with the same threads per rank), if both were measured."""
    alone = {(m.model, m.threads): m for m in all_measured if m.ranks == 1}
    for m in all_measured:
        one = alone.get((m.model, m.threads))
        if m.ranks > 1 and one:
            yield m, one


def share_of_ideal(m, one, who):
    return m.speed(who) / (m.ranks * one.speed(who)) if who in m.rounds and who in one.rounds else None


def scaling_table(all_measured, titles):
    def percent(value):
        return cell(value, lambda v: f"{100 * v:.0f} %")

    rows = []
    for m, one in scalings(all_measured):
        of_registers = None
        if m.arithmetic:
            of_registers = statistics.median(m.arithmetic) / (m.ranks * statistics.median(one.arithmetic))
        without = statistics.median(m.shares) if m.shares else None
        rows.append([m.model, f"{m.ranks} x {m.threads}", *(percent(share_of_ideal(m, one, w)) for w in [US, *titles]),
                     *map(percent, (one.fastest_step() / m.fastest_step(), of_registers, without))])
    return table(["model", "ranks x threads", US, *titles, FASTEST, REGISTERS, f"{US}, of its speed without all-reduces"],
                 rows)


def targets(all_measured):
    for m in all_measured:
        wanted = (GPT_SPEED.get(m.model, 1.0) if m.model in GPTS else 1.0 if m.model in TRANSFORMERS else 1.3 if m.model in TORCHVISION else
                  1.6 if m.model in ("resnet18", "resnet50") else 2.5)
        yield m.name(), "times the best peer's speed", m.ratio(), "at least", wanted
        yield m.name(), "times the smallest peer's memory", m.share_of_memory(), "at most", 1.0
    for m, one in scalings(all_measured):
        yield (m.name(), f"of {m.ranks} times one rank's speed", share_of_ideal(m, one, US), "at least",
               0.97 if m.model.startswith("resnet") else 0.9)


def write_csv(path, all_measured):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "batch", "ranks", "threads", "program", "round", SPEED, MEMORY])
        for m in all_measured:
            for who, rows in m.rounds.items():
                for count, row in enumerate(rows, 1):
                    writer.writerow([m.model, m.batch, m.ranks, m.threads, m.settings.get(who, who), count,
                                     f"{row[SPEED]:.6g}", row[MEMORY]])


def add_options(parser):
    parser.add_argument("--models", default="lenet,cnn", help=f"from {', '.join(MODELS)}")
    parser.add_argument("--runs", default=",".join(dict.fromkeys((f"1x{CORES}", "1x1", "2x1"))),
                        help="ranks x threads each, separated by commas; default: %(default)s")
    parser.add_argument("--peers", default=",".join(FRAMEWORKS), help="default: %(default)s")
    parser.add_argument("--batch", type=int, help="per rank; default: 64, but 16 for images of 224x224")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="duration of each program's measurement in each round")
    parser.add_argument("--from", dest="checkpoint", metavar="RUN", type=pathlib.Path,
                        help="start Annulus from this run's checkpoint; --models must name only its model")
    parser.add_argument("--scaling", action="store_true", help="also measure the machine's noise and the cost of all-reduces")
    parser.add_argument("--csv", type=pathlib.Path, help="write every round to this file as well")


def check_options(parser, options):
    for name, known in (("models", MODELS), ("peers", FRAMEWORKS)):
        chosen = words(getattr(options, name))
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{name}: {unknown[0]} is none of {', '.join(known)}")
        setattr(options, name, chosen)
    try:
        options.runs = [parse_run(text) for text in words(options.runs)]
    except ValueError:
        parser.error(f"--runs: {options.runs} is no list of RANKSxTHREADS, such as 1x{CORES},2x1")
    for ranks, threads in options.runs:
        if ranks * threads > CORES:
            parser.error(f"--runs: {ranks}x{threads} needs {ranks * threads} cores, and there are {CORES}")
    if options.rounds < 1 or options.seconds <= 0 or (options.batch is not None and options.batch < 1):
        parser.error("--rounds, --seconds and --batch must be positive")
    if options.checkpoint and len(options.models) != 1:
        parser.error("--from: name the run's model, and no other, with --models")
    return options.peers


def main(options):
    all_measured = []
    for model in options.models:
        for run in options.runs:
            all_measured.append(Measured(model, options.batch or MODELS[model][0], *run, options.checkpoint))
            all_measured[-1].measure(options.peers, options.rounds, options.seconds, options.scaling)

    titles = [FRAMEWORKS[peer].title for peer in options.peers]
    print(f"Training images/s or tokens/s, medians of {options.rounds} rounds in turns.\n\n{speed_table(all_measured, titles)}")
    if any(True for _ in scalings(all_measured)):
        print(f"\nSpeed as a share of N times one rank's:\n\n{scaling_table(all_measured, titles)}")
    print("\nFastest settings:\n\n" + "\n".join(f"- {m.name()}: {'; '.join(m.settings.values()) or 'no peers'}"
                                               for m in all_measured))
    if options.csv:
        write_csv(options.csv, all_measured)
    return targets(all_measured)
