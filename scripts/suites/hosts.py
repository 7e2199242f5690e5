"""All-reduces and training on several hosts: the share of the network's rate that all-reduces reach, and their overlap
with computation.

  scripts/bench hosts [--number 4] [--rate 1gbit]                simulated hosts: namespaces on this machine, as root
  scripts/bench hosts --hosts a,b,c,d                            real hosts, with this folder at the same path
                      [--sizes 64KiB,...,64MiB] [--slots 2] [--models cnn,...] [--buckets 64KiB+0.25,...]
                      [--training-rate 50mbit] [--rounds 3] [--seconds 0.5] [--out FOLDER] [--check] [--predict]

All programs alternate, round by round; results are medians over the rounds. The reference for all-reduces is one TCP
stream between two of the hosts, sampled in every round; busbw is 2(N-1)/N bytes / time, in float32 whatever the wire
type. All-reduces run with one rank on each host, then with --slots. An idle simulated link can send 1 ms of its rate in
one burst, so small all-reduces may be faster than the stream.

Training uses a batch for which communication alone (an all-reduce of the gradients without computation) takes 0.8 of
the time of computation alone (--all-reduce none). A step that waits for all all-reduces can at best overlap them with
backward, so it takes at least forward plus the gradients' time at the stream's rate. Simulated hosts share this
machine's cores: so training uses one host per core, and its own links of --training-rate, because slower links need
less of the cores.

With --predict it only compares annulus predict-scaling with measurements: all-reduces on all hosts, predicted from the
link fitted to all-reduces between two of them, and training. All-reduces that a simulated link sends mostly in one
burst are omitted.

Prints Markdown tables, and writes hosts.md, hosts.csv, training.csv and hosts.png, or prediction.md. With --check it
exits with 1 if a target is missed.
"""
import contextlib
import csv
import json
import os
import random
import re
import statistics
import tempfile

from benchmark import (
    ANNULUS, KIB, MIB, OPEN_MPI_RING, ROOT, Measured, drawing, format_size, give_up, parse_sizes, run, run_annulus,
    say, size_axis, table, times, words, write_csv)
from prediction import predict, predict_ring
from simulated_hosts import simulated_hosts

CORES = len(os.sched_getaffinity(0))

# Name: (--algorithms, --wire, options of mpirun).
OURS = {"ring": ("message-ring", "fp32", []), "auto": ("auto", "fp32", []), "ring bf16": ("message-ring", "bf16", [])}
OURS_OF_SLOTS = {"hierarchical": ("hierarchical", "fp32", []), "ring": OURS["ring"]}
PEERS = {"mpi": ("mpi", "fp32", []), "mpi-ring": ("mpi", "fp32", OPEN_MPI_RING)}
PROGRAMS = {**OURS, **OURS_OF_SLOTS, **PEERS}
EXPLAINED = {
    "ring": "our ring over MPI messages", "auto": "the choice of --all-reduce auto", "ring bf16": "our ring, --wire bf16",
    "hierarchical": "ours: in shared memory on each host, the ring between hosts, where "
                    "fewer bytes go than busbw counts",
    "mpi": "MPI_Allreduce of Open MPI (defaults)", "mpi-ring": "its ring",
}

# Bytes of the models' gradients for 28x28 images of 10 classes, as `annulus train` prints them.
GRADIENTS = {"mlp": 940_736, "lenet": 247_424, "cnn": 1_687_424, "resnet20": 1_094_912}
COMMUNICATION_SHARE = 0.8  # communication / computation

SIZES_OF_BUCKETS = [64 * KIB, 256 * KIB, MIB]  # of the all-reduces that measure the link for training
LARGE = 32 * MIB  # from this size, an all-reduce's latencies are negligible


# --- Hosts ------------------------------------------------------------------------------------------------------------

class Hosts:
    """The hosts of the ranks: `names`, and the command prefix and options for mpirun. An idle link sends `burst` bytes
    in one burst."""

    def __init__(self, names, prefix=(), environment=None, place=("--bind-to", "core"), burst=0):
        self.names, self.prefix, self.environment, self.place, self.burst = names, prefix, environment, place, burst

    def mpirun(self, slots, *options):
        where = ",".join(f"{name}:{slots}" for name in self.names)
        return [*self.prefix, "mpirun", "-np", len(self.names) * slots, "--host", where, *self.place, *options]

    def first(self, number):
        return Hosts(self.names[:number], self.prefix, self.environment, self.place, self.burst)


def bits_per_second(rate):
    number, unit = re.fullmatch(r"(\d+)(mbit|gbit)", rate).groups()
    return int(number) * {"mbit": 10**6, "gbit": 10**9}[unit]


@contextlib.contextmanager
def made_hosts(number, rate):
    burst = max(16 * KIB, bits_per_second(rate) // 8 // 1000)  # 1 ms, but at least a few packets
    with simulated_hosts(number, rate, burst) as made:
        yield Hosts(made.names, made.prefix(), made.environment, ["--oversubscribe", "--bind-to", "none"], burst)


def stream(hosts, seconds, limit):
    """Bytes per second of one TCP stream from the second host to the first."""
    pair = hosts.first(2)
    port = random.randint(20000, 30000)  # below the ephemeral ports
    out, failure = run([*pair.mpirun(1), ROOT / "scripts/peers/tcp_stream.py", pair.names[0], port, seconds], limit,
                       pair.environment)
    if failure:
        give_up(f"no TCP stream between {' and '.join(pair.names)}: {failure}")
    return json.loads(out)["bytes_per_second"]


# --- All-reduces ------------------------------------------------------------------------------------------------------

def run_all_reduces(hosts, slots, name, sizes, options):
    """Returns its rows and the machine, or None and the reason of the failure."""
    algorithm, wire, mpirun_options = PROGRAMS[name]
    return run_annulus(
        hosts.mpirun(slots, *mpirun_options),
        ["all-reduce", "--algorithms", algorithm, "--wire", wire, "--sizes", ",".join(map(str, sizes)), "--seconds",
         options.seconds], options.limit, hosts.environment)


class AllReduces(Measured):
    """All-reduces with `slots` ranks on every host."""

    def __init__(self, hosts, slots, ours, peers):
        super().__init__(len(hosts.names) * slots)
        self.slots, self.ours, self.peers, self.skipped = slots, ours, peers, {}
        self.title = f"{len(hosts.names)} hosts, {slots} rank{'s' * (slots > 1)} on each"

    def names(self):
        return [name for name in [*self.ours, *self.peers] if name not in self.skipped]

    def measure(self, hosts, options):
        for name in self.names():
            found, failure = run_all_reduces(hosts, self.slots, name, options.sizes, options)
            if failure:
                self.skipped[name] = failure
                say(f"{self.title}: {name} is omitted: {failure}")
                continue
            self.machine = found["machine"]
            for row in found["rows"]:
                self.add({**row, "algorithm": name})


def measure_all_reduces(hosts, options):
    """Returns the rates of the TCP stream, and the AllReduces."""
    all_reduces = [AllReduces(hosts, 1, list(OURS), list(PEERS))]
    if options.slots > 1:
        all_reduces.append(AllReduces(hosts, options.slots, list(OURS_OF_SLOTS), ["mpi"]))
    rates = []
    for number in range(1, options.rounds + 1):
        say(f"all-reduces: round {number} of {options.rounds}")
        rates.append(stream(hosts, 2, options.limit))
        for one in all_reduces:
            one.measure(hosts, options)
    if not all_reduces[0].rows:
        give_up("no all-reduce was measured")
    return rates, all_reduces


# --- Training ---------------------------------------------------------------------------------------------------------

class Training:
    """Training of one model with one bucket setting (a size, or a size and the deferred share: "64KiB+0.25"); medians
    over the rounds, seconds."""

    def __init__(self, model, bucket, batch, forward_share, ranks):
        self.model, self.bucket, self.batch, self.forward_share = model, bucket, batch, forward_share
        self.ranks, self.rounds = ranks, []

    def __getattr__(self, name):
        return statistics.median(row[name] for row in self.rounds)

    @property
    def ratio(self):
        return self.step / max(self.computation, self.communication)

    @property
    def ratio_at_best(self):
        begin = 0 if "+" in self.bucket else self.forward_share * self.computation  # deferred buckets may continue in forward
        shortest = max(self.computation, begin + self.link)
        return shortest / max(self.computation, self.communication)


def bench_step(hosts, model, batch, all_reduces, options, *arguments):
    """Returns its rows by all-reduce, and the step's profile."""
    found, failure = run_annulus(
        hosts.mpirun(1), ["step", "--model", model, "--batch", batch, "--all-reduce", all_reduces, "--threads", 1,
                          "--seconds", options.training_seconds, *arguments], options.limit, hosts.environment)
    if failure:
        give_up(f"training {model} failed: {failure}")
    return {row["algorithm"]: row for row in found["rows"]}, found["profile"]


def communication(hosts, model, options):
    found, failure = run_all_reduces(hosts, 1, "ring", [GRADIENTS[model]], options)
    if failure:
        give_up(f"the ring failed: {failure}")
    return found["rows"][0]["median_seconds"]


def choose_batch(hosts, model, options):
    """The time of computation grows with the batch, that of communication does not."""
    wanted = communication(hosts, model, options) / COMMUNICATION_SHARE
    batch = 32
    for _ in range(2):  # a large batch takes less time per image
        seconds = bench_step(hosts, model, batch, "none", options)[0]["none"]["median_seconds"]
        batch = max(1, round(batch * wanted / seconds))
    return batch


def forward_share(hosts, model, batch, options):
    """The seconds of a step without communication."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        bench_step(hosts, model, batch, "none", options, "--timeline", file.name)
        spans = [event for event in json.load(open(file.name)) if event["ph"] == "X"]
    seconds = {name: sum(span["dur"] for span in spans if span["name"] == name) for name in ("forward", "step")}
    return seconds["forward"] / seconds["step"]


def training_round(hosts, training, rate, options):
    model, batch, ranks = training.model, training.batch, training.ranks
    communication_alone = communication(hosts, model, options)
    size, _, deferred = training.bucket.partition("+")
    found, _ = bench_step(hosts, model, batch, "message-ring,none", options, "--bucket", size, "--defer", deferred or 0)
    beside, alone = found["message-ring"], found["none"]
    steps = beside["ledger"]["steps"]
    return {"step": beside["median_seconds"], "computation": alone["median_seconds"], "communication": communication_alone,
            "link": GRADIENTS[model] * 2 * (ranks - 1) / ranks / rate,
            "computation_beside": beside["compute_seconds"], "computation_alone": alone["compute_seconds"],
            "exposed": beside["ledger"]["exposed_communication"] / steps,
            "waiting": beside["ledger"]["waiting_for_slower_ranks"] / steps}


def measure_training(hosts, options):
    """Returns the rates of the TCP stream, and the Trainings."""
    all_training = []
    for model in options.models:
        batch = choose_batch(hosts, model, options)
        forward = forward_share(hosts, model, batch, options)
        say(f"training: {model}, batch {batch}")
        all_training += [Training(model, bucket, batch, forward, len(hosts.names)) for bucket in options.buckets]
    rates = []
    for number in range(1, options.rounds + 1):
        say(f"training: round {number} of {options.rounds}")
        rates.append(stream(hosts, 2, options.limit))
        for training in all_training:
            training.rounds.append(training_round(hosts, training, rates[-1], options))
    return rates, all_training


# --- Predictions ------------------------------------------------------------------------------------------------------

class Predicted:
    """A time that was predicted and measured in every round, in seconds."""

    def __init__(self, what):
        self.what, self.measured, self.predicted = what, [], []

    def add(self, measured, predicted):
        self.measured.append(measured)
        self.predicted.append(predicted)

    @property
    def ratio(self):
        return statistics.median(p / m for p, m in zip(self.predicted, self.measured))


@contextlib.contextmanager
def fitted_link(hosts, sizes, options):
    """Arguments of predict-scaling: the link, fitted to all-reduces between the first two hosts."""
    found, failure = run_all_reduces(hosts.first(2), 1, "ring", sizes, options)
    if failure:
        give_up(f"the ring failed: {failure}")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(found, file)
        file.flush()
        yield ["--fit", file.name]


def predict_all_reduces(hosts, options):
    """Predicts the all-reduce of each size on all hosts."""
    ranks = len(hosts.names)
    sizes = [size for size in options.sizes if size * 2 * (ranks - 1) / ranks > 2 * hosts.burst]
    all_reduces = [Predicted(f"all-reduce of {format_size(size)}, {ranks} hosts") for size in sizes]
    for number in range(1, options.rounds + 1):
        say(f"predicting all-reduces: round {number} of {options.rounds}")
        found, failure = run_all_reduces(hosts, 1, "ring", sizes, options)
        if failure:
            give_up(f"the ring failed: {failure}")
        with fitted_link(hosts, sizes, options) as link:
            for one, row in zip(all_reduces, found["rows"]):
                one.add(row["median_seconds"], predict_ring(ANNULUS, row["bytes"], ranks, *link))
    return all_reduces


def predict_step(profile, rows, ranks, arguments):
    """Seconds. Two ranks and their network share this machine, so computation is slower during all-reduces; the factor is
    measured over all computation, but applies only to the part that overlaps with all-reduces."""
    arguments = ["--all-reduce", "message-ring", *arguments]
    row = predict(ANNULUS, profile, ranks, *arguments)
    beside = (row["communication_ms"] - row["exposed_ms"]) / row["compute_ms"]
    slower = rows["message-ring"]["compute_seconds"] / rows["none"]["compute_seconds"] - 1
    if slower > 0 and beside > 0:
        row = predict(ANNULUS, profile, ranks, *arguments, "--slow-down", 1 + slower / beside)
    return row["step_ms"] / 1e3


def predict_training(hosts, options):
    """Predicts the step of each model with each bucket setting."""
    all_steps = []
    for model in options.models:
        batch = choose_batch(hosts, model, options)
        for bucket in options.buckets:
            size, _, deferred = bucket.partition("+")
            cut = ["--bucket", size, "--defer", deferred or 0]
            step = Predicted(f"training {model}, batch {batch}, buckets of {bucket}, {len(hosts.names)} hosts")
            for number in range(1, options.rounds + 1):
                say(f"predicting {step.what}: round {number} of {options.rounds}")
                rows, profile = bench_step(hosts, model, batch, "none,message-ring", options, *cut)
                with fitted_link(hosts, SIZES_OF_BUCKETS, options) as link:
                    step.add(rows["message-ring"]["median_seconds"],
                             predict_step(profile, rows, len(hosts.names), [*link, *cut]))
            all_steps.append(step)
    return all_steps


def prediction_report(predicted, options):
    rows = [[p.what, milliseconds(statistics.median(p.measured)), milliseconds(statistics.median(p.predicted)),
             times(p.ratio)] for p in predicted]
    links = "" if options.hosts else f"Links of {options.rate}, training over {options.training_rate}. "
    return (f"{links}Medians of {options.rounds} rounds; each round fits the link anew.\n\n"
            f"{table(['what', 'measured, ms', 'predicted, ms', 'predicted / measured'], rows)}\n")


def prediction_targets(predicted):
    for p in predicted:
        yield p.what, "relative error of the prediction", abs(p.ratio - 1), "at most", 0.1


# --- Report -----------------------------------------------------------------------------------------------------------

def milliseconds(seconds):
    return f"{seconds * 1e3:,.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def rate_line(rates):
    return (f"One TCP stream's payload: {statistics.median(rates) / 1e6:,.1f} MB/s "
            f"({min(rates) / 1e6:,.1f} to {max(rates) / 1e6:,.1f}).")


def all_reduce_tables(one, rate, sizes):
    def cell(name, size):
        return f"{one.busbw(name, size) / 1e6:,.1f} ({one.busbw(name, size) / rate:.0%})"

    head = list(map(format_size, sizes))
    return [table(["ms", *head], [[name, *(milliseconds(one.seconds(name, size)) for size in sizes)]
                                  for name in one.names()]),
            table(["busbw, MB/s (of the stream)", *head], [[name, *(cell(name, size) for size in sizes)]
                                                           for name in one.names()]),
            *(f"Not measured: {name} ({why})." for name, why in one.skipped.items())]


def training_table(all_training):
    head = ["model", "batch per rank", "buckets", "computation, ms", "communication, ms", "link, ms", "step, ms",
            "step / the longer", "at best", "exposed, ms", "waiting for slower ranks, ms", "compute beside / alone"]
    return table(head, [[t.model, str(t.batch), t.bucket,
                         *map(milliseconds, (t.computation, t.communication, t.link, t.step)),
                         times(t.ratio), times(t.ratio_at_best), milliseconds(t.exposed), milliseconds(t.waiting),
                         times(t.computation_beside / t.computation_alone)] for t in all_training])


def report(rates, all_reduces, training_rates, all_training, options):
    machine = all_reduces[0].machine
    links = (f"{len(options.hosts)} hosts" if options.hosts else
             f"hosts made on one machine of {CORES} cores, links of {options.rate}")
    lines = [f"{machine['processor']}; {machine['mpi'].split(',')[0]}; {links}. Medians of {options.rounds} rounds in "
             "turns; float32, in place; every row's first all-reduce checked exactly in every round.", rate_line(rates)]
    for one in all_reduces:
        lines += [f"### {one.title}", *all_reduce_tables(one, statistics.median(rates), options.sizes)]
    lines.append("\n".join(f"- {name}: {text}" for name, text in EXPLAINED.items()))
    if all_training:
        links = "" if options.hosts else f", links of {options.training_rate}"
        lines += [f"### Training, {all_training[0].ranks} hosts with one rank of one thread each{links}",
                  rate_line(training_rates), training_table(all_training)]
    return "\n\n".join(lines) + "\n"


def write_training(path, all_training):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        names = list(all_training[0].rounds[0])
        writer.writerow(["model", "batch", "buckets", "ranks", "forward_share", "round",
                         *(f"{name}_seconds" for name in names)])
        for training in all_training:
            for number, row in enumerate(training.rounds, 1):
                writer.writerow([training.model, training.batch, training.bucket, training.ranks,
                                 f"{training.forward_share:.4f}", number, *(f"{row[name]:.9g}" for name in names)])


def draw(path, rate, all_reduces, all_training, sizes):
    pyplot = drawing()
    panels = len(all_reduces) + bool(all_training)
    figure, axes = pyplot.subplots(1, panels, figsize=(6.2 * panels, 5), squeeze=False)
    colours = dict(zip(EXPLAINED, ["#08306b", "#2171b5", "#7cb342", "#00897b", "#b30000", "#fc8d59"]))
    for panel, one in zip(axes[0], all_reduces):
        panel.axhline(rate / 1e6, color="black", linestyle=":", label="one TCP stream")
        for name in one.names():
            panel.plot(sizes, [one.busbw(name, size) / 1e6 for size in sizes], color=colours[name], marker="o",
                       linestyle="-" if name in one.ours else "--", label=name)
        panel.set_title(f"All-reduces: {one.title}")
        panel.set_ylabel("busbw, MB/s  (bytes / time × 2(N−1)/N)")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        size_axis(panel, sizes)
    if all_training:
        panel, all_training = axes[0][-1], best_buckets(all_training)
        parts = {"computation": "#9ecae1", "communication": "#fdae6b", "step": "#08306b"}
        for place, (part, colour) in enumerate(parts.items()):
            panel.bar([n + (place - 1) * 0.25 for n in range(len(all_training))],
                      [getattr(t, part) * 1e3 for t in all_training], 0.25, color=colour,
                      label=part + " alone" * (part != "step"))
        panel.set_xticks(range(len(all_training)), [f"{t.model}, batch {t.batch},\nbuckets of {t.bucket}"
                                                      for t in all_training])
        panel.set_title("Training: a step, and its parts alone")
        panel.set_ylabel("ms")
        panel.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def best_buckets(all_training):
    return [min((t for t in all_training if t.model == model), key=lambda t: t.ratio)
            for model in dict.fromkeys(t.model for t in all_training)]


def targets(rate, all_reduces, all_training, sizes):
    for size in sizes:
        if size >= LARGE:
            one = all_reduces[0]
            yield (f"{one.title}, {format_size(size)}", "busbw of the ring / rate of a TCP stream",
                   None if "ring" in one.skipped else one.busbw("ring", size) / rate, "at least", 0.95)
    for training in best_buckets(all_training):
        yield (f"training {training.model}, batch {training.batch}, buckets of {training.bucket}",
               "step time / the longer of its parts alone", training.ratio, "at most", 1.1)


# --- Main -------------------------------------------------------------------------------------------------------------

def add_options(parser):
    parser.add_argument("--hosts", type=words, default=[], help="real hosts; default: simulated ones here, as root")
    parser.add_argument("--number", type=int, default=4, help="number of simulated hosts (4)")
    parser.add_argument("--rate", default="1gbit", help="rate of their links (1gbit)")
    parser.add_argument("--sizes", type=parse_sizes, default=[64 * KIB, MIB, 4 * MIB, 32 * MIB, 64 * MIB],
                        help="sizes of all-reduces (64KiB,1MiB,4MiB,32MiB,64MiB)")
    parser.add_argument("--slots", type=int, default=2, help="ranks per host in the second series (2)")
    parser.add_argument("--models", type=words, default=["lenet", "cnn", "resnet20"],
                        help="models to train (lenet,cnn,resnet20); may be empty")
    parser.add_argument("--buckets", type=words, default=["auto", "auto+0.25", "64KiB+0.25"],
                        help="bucket size + deferred share (auto,auto+0.25,64KiB+0.25)")
    parser.add_argument("--training-rate", default="50mbit", help="rate of simulated links in training (50mbit)")
    parser.add_argument("--training-seconds", type=float, default=3, help="duration per all-reduce and round (3)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate duration per size and round (0.5)")
    parser.add_argument("--limit", type=int, default=300, help="time limit of a program in seconds (300)")
    parser.add_argument("--predict", action="store_true", help="only compare predictions with measurements")


def check_options(parser, options):
    if unknown := set(options.models) - set(GRADIENTS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are: {', '.join(GRADIENTS)}")
    if len(options.hosts) == 1 or options.number < 2:
        parser.error("one host has no network: give at least two")
    return None


def measure_and_report(all_reduce_hosts, training_hosts, options):
    """The targets."""
    with all_reduce_hosts as hosts:
        rates, all_reduces = measure_all_reduces(hosts, options)
    training_rates, all_training = [], []
    if options.models:
        with training_hosts as hosts:
            training_rates, all_training = measure_training(hosts, options)

    rate = statistics.median(rates)
    text = report(rates, all_reduces, training_rates, all_training, options)
    (options.out / "hosts.md").write_text(text)
    write_csv(options.out / "hosts.csv", all_reduces)
    if all_training:
        write_training(options.out / "training.csv", all_training)
    print(text)
    try:
        draw(options.out / "hosts.png", rate, all_reduces, all_training, options.sizes)
    except ImportError as error:
        say(f"SKIPPED hosts.png: {error}")
    return targets(rate, all_reduces, all_training, options.sizes)


def predict_and_report(all_reduce_hosts, training_hosts, options):
    """The targets."""
    with all_reduce_hosts as hosts:
        predicted = predict_all_reduces(hosts, options)
    if options.models:
        with training_hosts as hosts:
            predicted += predict_training(hosts, options)
    text = prediction_report(predicted, options)
    (options.out / "prediction.md").write_text(text)
    print(text)
    return prediction_targets(predicted)


def main(options):
    real = Hosts(options.hosts) if options.hosts else None
    few = max(2, min(options.number, CORES))
    all_reduce_hosts = contextlib.nullcontext(real) if real else made_hosts(options.number, options.rate)
    training_hosts = contextlib.nullcontext(real) if real else made_hosts(few, options.training_rate)
    found = (predict_and_report if options.predict else measure_and_report)(all_reduce_hosts, training_hosts, options)
    return found
