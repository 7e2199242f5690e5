"""The link between nodes: measured, given, or assumed from a fabric's public figures. Ranks on one node say nothing about it."""
import argparse
import dataclasses
import re
import statistics

# A port's line rate in Gbit/s (IEEE 802.3, InfiniBand Trade Association, HPE, Cornelis), and a small MPI message's latency
# in us that vendors and the OSU benchmarks' users publish for it. Both are better than what a busy network gives.
FABRICS = {"10gbe": (20, 10), "25gbe": (15, 25), "100gbe": (5, 100), "omni-path": (1.2, 100), "edr": (1.1, 100),
           "hdr": (1.1, 200), "ndr": (1.1, 400), "slingshot-11": (2, 200), "efa": (16, 100)}
UNCERTAINTY = 0.2  # relative, of links that were not measured: as much as a fit may be off (fit_link.h)
KIB = 1 << 10

TIMES = {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}                      # in us
RATES = {"Mbit/s": 1e-3, "Gbit/s": 1, "MB/s": 8e-3, "GB/s": 8}          # in Gbit/s


def quantity(units, example):
    """An option's type, as annulus predict-scaling reads it."""
    def parse(text):
        parts = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?) *(\S+)", text)
        if not parts or parts[2] not in units or not float(parts[1]) > 0:
            raise argparse.ArgumentTypeError(f"{text!r} is no quantity such as {example}")
        return float(parts[1]) * units[parts[2]]
    return parse


def add_options(command):
    group = command.add_argument_group("the link between nodes, if it is not measured (else the prediction ends with the node)")
    group.add_argument("--latency", type=quantity(TIMES, "20us"), help="of a message between nodes, such as 20us")
    group.add_argument("--bandwidth", type=quantity(RATES, "10Gbit/s"), help="of a node's link, each way, such as 10Gbit/s")
    group.add_argument("--network", choices=FABRICS, help="assume this fabric's public figures")


def given(options):
    """The Link that the options give, or None. Raises ArgumentTypeError if they do not belong together."""
    if options.network and (options.latency or options.bandwidth):
        raise argparse.ArgumentTypeError("--network excludes --latency and --bandwidth")
    if bool(options.latency) != bool(options.bandwidth):
        raise argparse.ArgumentTypeError("--latency and --bandwidth belong together")
    if options.network:
        return Link(*FABRICS[options.network], f"assumed: public figures of {options.network}", assumed=True)
    if options.latency:
        return Link(options.latency, options.bandwidth, "given: --latency and --bandwidth", assumed=True)
    return None


@dataclasses.dataclass(frozen=True)
class Link:
    latency_us: float
    bandwidth_gbit_s: float
    source: str                # for the reader
    residual: float = 0.0      # root mean square error of the fit
    assumed: bool = False      # not measured
    one_node: bool = False     # memory: known for the measured numbers of ranks only

    def options(self, end):
        """Options of annulus predict-scaling; `end`: "median", or the "low" or "high" end of what it costs."""
        wrong = 1 + (UNCERTAINTY if self.assumed else self.residual)
        factor = {"median": 1, "low": 1 / wrong, "high": wrong}[end]
        return ["--latency", f"{self.latency_us * factor:.12g}us", "--bandwidth",
                f"{self.bandwidth_gbit_s / factor:.12g}Gbit/s"]


def typical_bucket(profile):
    """The default size of buckets (collectives/gradient_buckets.h), in bytes."""
    return min(max(sum(sum(layer["gradient_bytes"]) for layer in profile["layers"]) / 8, 64 * KIB), 4096 * KIB)


def node_options(rows, ranks, algorithm, bucket):
    """Options that describe all-reduces on a node: in shared memory they take 2 latency + 2 (N - 1) / N bytes / bandwidth
    (src/scaling/all_reduce_model.cpp), here with the times of the two measured sizes around a bucket's."""
    found = {}
    for row in rows:
        if row["algorithm"] == algorithm:
            found.setdefault(row["bytes"], []).append(row["median_seconds"])
    sizes = sorted(found)
    if len(sizes) < 2:
        return None
    place = min(max(sum(size <= bucket for size in sizes), 1), len(sizes) - 1)
    small, large = sizes[place - 1], sizes[place]
    short, long = (statistics.median(found[size]) for size in (small, large))
    per_byte = max((long - short) / (large - small), 1e-15)
    latency = max(0.0, (short - per_byte * small) / 2)
    per_byte = (long - 2 * latency) / large
    rate = 2 * (ranks - 1) / ranks / per_byte
    return ["--ranks-per-node", ranks, "--node-latency", f"{1e6 * latency:.12g}us", "--node-bandwidth", f"{rate / 1e9:.12g}GB/s"]
