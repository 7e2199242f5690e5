"""PyTorch's DistributedDataParallel over Annulus's process group (src/torch) beside gloo.

  scripts/bench ddp [--ranks 2,4] [--sizes 4B,1KiB,...] [--models mlp,resnet50,gpt2:64] [--rounds 3] [--seconds 2]
  scripts/bench ddp --hosts 4         also all-reduces on simulated hosts with 2 ranks each, links of 1 Gbit/s; needs root

All-reduces of arrays in the group's memory, where DistributedDataParallel has its buckets, and anywhere else. Programs take
turns, arrays are rewritten before each call, and a time is the slowest rank's; medians. Steps on 2 ranks of one thread, beside
steps whose gradients DistributedDataParallel collects in buckets, but does not reduce, and steps without it. With --check it
exits with 1 if a target is missed.
"""
import json
import os
import statistics
import subprocess
import sys

from benchmark import KIB, ROOT, format_size, give_up, number, parse_sizes, run, say, table, words
from simulated_hosts import simulated_hosts

PYTHON = ROOT / "build/peers/torch/bin/python"
RANK = ROOT / "scripts/peers/torch_groups.py"
OWN, ANY, GLOO = "annulus, its memory", "annulus, any memory", "gloo"
BATCHES = {"mlp": 32, "resnet50": 8, "gpt2:64": 4}
LIMIT = 900


def add_options(parser):
    parser.add_argument("--ranks", type=words, default=["2", "4"], help="of all-reduces")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("4B,1KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"))
    parser.add_argument("--models", type=words, default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=3, help="of steps")
    parser.add_argument("--seconds", type=float, default=2, help="for each size and for each step measurement")
    parser.add_argument("--hosts", type=int, default=0, help="number of simulated hosts")


def check_options(parser, options):
    unknown = set(options.models) - set(BATCHES)
    if unknown:
        parser.error(f"unknown models {','.join(unknown)} (known: {','.join(BATCHES)})")
    return ["torch"]


def install():
    if not PYTHON.exists():
        give_up("PyTorch is missing: scripts/setup --peers=torch")
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "setuptools", "numpy"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    subprocess.run([*command[:-2], "--no-build-isolation", ROOT / "src/torch"], check=True, stdout=sys.stderr)


def rows(start, *arguments, environment=None):
    out, failure = run([*start, PYTHON, RANK, *arguments], LIMIT, environment)
    if failure:
        give_up(f"{' '.join(map(str, arguments))}: {failure}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def launch(ranks):
    return [ROOT / "scripts/launch", "-np", ranks]


def all_reduces(found, what, targets, least):
    """A table of rows(). `least`: the least ratio to gloo for arrays in the group's memory and elsewhere, by bytes."""
    lines = []
    for row in found:
        seconds, size = row["seconds"], row["bytes"]
        ratios = [seconds[GLOO] / seconds[kind] for kind in (OWN, ANY)]
        lines.append([format_size(size), *(number(1e6 * seconds[kind]) for kind in (OWN, ANY, GLOO)),
                      *(f"{ratio:.1f}" for ratio in ratios)])
        for kind, ratio, goal in zip((OWN, ANY), ratios, least(size)):
            targets.append((f"{what}, {format_size(size)}, {kind}", "times gloo's speed", ratio, "at least", goal))
    print(f"\n{what}, microseconds:\n")
    print(table(["size", OWN, ANY, GLOO, "times gloo", "any memory, times gloo"], lines))


def steps(options, targets):
    lines = []
    for model in options.models:
        times = {"none": [], "hook": [], "annulus": [], "gloo": []}
        for turn in range(options.rounds):
            say(f"{model}: round {turn + 1} of {options.rounds}")
            for name in times:
                row, = rows(launch(2), "step", model, BATCHES[model], options.seconds, name)
                times[name].append(row["seconds"])
        medians = [statistics.median(found) for found in times.values()]
        over = statistics.median(a / b - 1 for a, b in zip(times["annulus"], times["hook"]))
        lines.append([model, str(BATCHES[model]), *(number(1e3 * value) for value in medians), f"{100 * over:+.1f} %",
                      f"{medians[-1] / medians[-2]:.2f}"])
        targets.append((f"step of {model}", "over the step without all-reduces", over, "at most", 0.03))
    print("\nSteps of DistributedDataParallel, 2 ranks of one thread, ms:\n")
    print(table(["network", "batch per rank", "without it", "without all-reduces", "annulus", "gloo", "annulus over without all-reduces",
                 "gloo / annulus"], lines))


def on_hosts(options, targets):
    with simulated_hosts(options.hosts, "1gbit") as hosts:
        found = rows([*hosts.prefix(), *launch(2 * options.hosts), "--hosts", ",".join(hosts.names)], "all-reduce",
                     f"{256 * KIB},{4096 * KIB},{16384 * KIB}", options.seconds,
                     environment={**hosts.environment, "GLOO_SOCKET_IFNAME": "eth0"})
    all_reduces(found, f"{options.hosts} simulated hosts with 2 ranks each, 1 Gbit/s", targets, lambda size: (1.3, 1.3))


def main(options):
    install()
    targets = []
    print(f"PyTorch over Annulus's process group, load average {os.getloadavg()[0]:.1f} at the beginning.")
    sizes = ",".join(map(str, options.sizes))
    for ranks in options.ranks:
        say(f"all-reduces of {ranks} ranks")
        all_reduces(rows(launch(ranks), "all-reduce", sizes, options.seconds), f"All-reduces of {ranks} ranks", targets,
                    lambda size: (2, 1) if size < 256 * KIB else (10, 3))
    steps(options, targets)
    if options.hosts:
        on_hosts(options, targets)
    return targets
