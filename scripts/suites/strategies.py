"""All strategies on the same work, beside PyTorch and TensorFlow: Fashion-MNIST with `cnn` on two ranks of one thread.

  scripts/bench strategies [--epochs 6] [--rounds 3] [--out build/bench-strategies] [--check]

Global batch 128, SGD with momentum 0.9 and learning rate 0.02. PyTorch runs DistributedDataParallel over gloo, with its
SGD and with ZeroRedundancyOptimizer; TensorFlow runs MultiWorkerMirroredStrategy in a ring, and ParameterServerStrategy
with a server on each worker. All train one after the other, alternating over several rounds, each with another seed; the
table has the medians of the rounds:

  images/s    of the training, without start-up and evaluation
  memory      the peak of a rank's process
  sent        bytes that a rank sends in a step, counted by the links of two simulated hosts (tests/hosts, needs root;
              else not measured): the difference between runs of 300 and of 100 steps
  accuracy    on the test images, after the same epochs, and after the time that the fastest strategy needs for these
  time to     the accuracy that every training reached at its end; interpolated, like that after a time

Prints the table, and writes strategies.md. With --check it exits with 1 if a strategy is slower than a peer's or needs
more memory, or if its accuracy after the same epochs is more than 0.3 points below that of synchronous.
"""
import dataclasses
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess

from benchmark import ANNULUS, ROOT, give_up, number, pinned_mpirun, run, say, table, write
from fashion_mnist import IMAGES, TRAINING_LIMIT, data_file, peer_epochs
from simulated_hosts import simulated_hosts
from step_peers import Failed

RANKS, GLOBAL_BATCH, LEARNING_RATE = 2, 128, 0.02
SHORT, LONG = 100, 300  # steps of the runs whose bytes are counted
ALLOWED = 0.3           # points of accuracy
OURS = {
    "synchronous": [],
    "sharded": ["--strategy", "sharded"],
    "local, average": ["--strategy", "local", "--sync-every", 20],
    "local, nesterov": ["--strategy", "local", "--sync-every", 20, "--outer", "nesterov"],
    "async": ["--strategy", "async"],
}
DDP, ZERO = "PyTorch DDP", "PyTorch DDP, ZeroRedundancyOptimizer"
RING, SERVERS = "TensorFlow MultiWorkerMirroredStrategy", "TensorFlow ParameterServerStrategy"
# The framework and its settings: of PyTorch the fastest of cnn in bench step.
PEERS = {
    DDP: ["torch", "channels last", "eager"],
    ZERO: ["torch", "channels last", "eager", "sharded optimizer"],
    RING: ["tensorflow", "ring", "graph"],
    SERVERS: ["tensorflow", "parameter server", "graph"],
}
# Every strategy is held against DDP and the ring, and these also against their counterparts.
COUNTERPARTS = {"sharded": [ZERO], "async": [SERVERS]}


@dataclasses.dataclass
class Epoch:
    seconds: float
    accuracy: float


def interpolated(points, x):
    """Returns the y that the polyline first has at x or more; after its end, the last y."""
    for before, here in zip(points, points[1:]):
        if here[0] >= x:
            return before[1] + (here[1] - before[1]) * (x - before[0]) / (here[0] - before[0])
    return points[-1][1]


@dataclasses.dataclass
class Training:
    epochs: list
    memory: int

    def elapsed(self):
        """Seconds of training up to the end of each epoch."""
        return list(itertools.accumulate(epoch.seconds for epoch in self.epochs))

    def course(self):
        """Seconds and accuracy at the start and after each epoch."""
        return [(0.0, 0.0), *zip(self.elapsed(), (epoch.accuracy for epoch in self.epochs))]

    def accuracy_after(self, seconds):
        return interpolated(self.course(), seconds)

    def seconds_to(self, accuracy):
        return interpolated([(reached, elapsed) for elapsed, reached in self.course()], accuracy)


def annulus_train(start, options, data, out, *more, environment=None):
    """Returns the results of `annulus train` under the launcher `start`."""
    shutil.rmtree(out, ignore_errors=True)
    _, failure = run([*start, ANNULUS, "train", "--data", data, "--model", "cnn", "--global-batch", GLOBAL_BATCH,
                      "--threads", 1, "--lr", LEARNING_RATE, "--metrics", "none", "--out", out, *options, *more],
                     TRAINING_LIMIT, environment)
    if failure:
        raise Failed(failure)
    return json.loads((out / "results.json").read_text())


def train_annulus(options, seed, arguments):
    found = annulus_train(pinned_mpirun(RANKS, 1), options, data_file(arguments.out), arguments.out / "run", "--seed", seed,
                          "--epochs", arguments.epochs)
    return Training([Epoch(epoch["seconds"], epoch["test_accuracy"]) for epoch in found["epochs"]],
                    max(found["peak_memory_bytes"]))


def train_peer(settings, seed, arguments):
    found = peer_epochs(settings[0], RANKS, 1, settings[1:], batch=GLOBAL_BATCH, epochs=arguments.epochs,
                        lr=LEARNING_RATE, seed=seed)
    return Training([Epoch(epoch["seconds"], epoch["test_accuracy"]) for epoch in found], found[-1]["peak_memory_bytes"])


def sent_by(hosts):
    """Bytes that the hosts' links have sent."""
    total = 0
    for name in hosts.names:
        links = subprocess.run(list(map(str, [*hosts.prefix(name), "cat", "/proc/net/dev"])), capture_output=True, text=True)
        for link, counters in re.findall(r"^ *(\S+): (.*)$", links.stdout, re.MULTILINE):
            total += int(counters.split()[8]) if link != "lo" else 0
    return total


def bytes_of_step(options, data, out):
    """Bytes that a rank sends in a step, with each rank on a host of its own."""
    with simulated_hosts(RANKS, "1gbit") as hosts:
        def sent(steps):
            before = sent_by(hosts)
            start = [*hosts.prefix(), ROOT / "scripts/launch", "-np", RANKS, "--hosts", ",".join(hosts.names), "--",
                     "--bind-to", "none"]
            annulus_train(start, options, data, out, "--max-steps", steps, "--eval-every", "end",
                          "--all-reduce", "message-ring",  # auto measures at the start, with any number of bytes
                          environment=hosts.environment)
            return sent_by(hosts) - before

        return (sent(LONG) - sent(SHORT)) / (LONG - SHORT) / RANKS


def median(trainings, figure):
    return statistics.median(map(figure, trainings))


def speed(trainings):
    return median(trainings, lambda t: IMAGES * len(t.epochs) / t.elapsed()[-1])


def accuracy(trainings):
    return median(trainings, lambda t: t.epochs[-1].accuracy)


def memory(trainings):
    return median(trainings, lambda t: t.memory)


def result_table(found, sent, epochs):
    seconds = min(median(found[name], lambda t: t.elapsed()[-1]) for name in OURS if name in found)
    reached = min(t.epochs[-1].accuracy for trainings in found.values() for t in trainings)
    rows = [[name, number(speed(trainings)), f"{memory(trainings) / 2**20:.0f} MiB",
             f"{sent[name] / 1024:.0f} KiB" if name in sent else "-", f"{100 * accuracy(trainings):.2f} %",
             f"{100 * median(trainings, lambda t: t.accuracy_after(seconds)):.2f} %",
             f"{median(trainings, lambda t: t.seconds_to(reached)):.1f} s"] for name, trainings in found.items()]
    return table(["strategy", "images/s", "memory of a rank", "sent in a step", f"accuracy after {epochs} epochs",
                  f"after {seconds:.1f} s", f"time to {100 * reached:.2f} %"], rows)


def targets(found):
    for name in OURS:
        ours = found.get(name)
        for peer in (DDP, RING, *COUNTERPARTS.get(name, ())):
            both = ours and found.get(peer)
            yield name, f"times the speed of {peer}", both and speed(ours) / speed(both), "at least", 1
            yield name, f"times the memory of {peer}", both and memory(ours) / memory(both), "at most", 1
        below = ours and 100 * (accuracy(found["synchronous"]) - accuracy(ours))
        yield name, "points of accuracy below synchronous", below, "at most", ALLOWED


def add_options(parser):
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)


def check_options(parser, arguments):
    if len(os.sched_getaffinity(0)) < RANKS:
        parser.error(f"{RANKS} ranks need {RANKS} cores")
    return ["torch", "tensorflow"]


def main(arguments):
    found, sent = {}, {}
    for seed in range(1, arguments.rounds + 1):
        for name, options in {**OURS, **PEERS}.items():
            try:
                training = (train_annulus if name in OURS else train_peer)(options, seed, arguments)
            except Failed as error:
                if name in OURS:
                    give_up(f"{name}: {error}")
                say(f"{name} is SKIPPED: {error}")
                continue
            found.setdefault(name, []).append(training)
            say(f"{name}, round {seed} of {arguments.rounds}: {training.elapsed()[-1]:.1f} s, "
                f"{100 * training.epochs[-1].accuracy:.2f} %")
    for name, options in OURS.items() if os.getuid() == 0 else ():
        try:
            sent[name] = bytes_of_step(options, data_file(arguments.out), arguments.out / "run")
        except Failed as error:
            say(f"{name} over hosts is SKIPPED: {error}")
    text = result_table(found, sent, arguments.epochs)
    print(text)
    write(arguments.out / "strategies.md", text + "\n")
    return targets(found)
