"""Disturbances: the machine, its use by others before and during a measurement, and warnings.

Observes only the node that runs the study. Disturbances of other nodes appear in the spread between repeats."""
import collections
import os
import pathlib
import re
import resource
import statistics
import sys
import threading
import time

from benchmark import give_up, plural, say

QUIET_SECONDS = 0.3    # seconds of observation before a measurement
SAMPLE_SECONDS = 0.5   # seconds between two samples of the cores' clocks

# Thresholds of warnings.
BUSY_SHARE = 0.1       # share of the processors used by others just before
OTHERS_SHARE = 0.05    # share of the processors used by others during the measurement
STEAL_SHARE = 0.01     # share of the processors' time taken by the hypervisor
BUSY_AT_START = 0.25   # share of the processors used by others before the study: it is refused or asked for
LOAD_SHARE = 0.2       # load average per processor at the start of the study
SPREAD = 0.05          # (largest - smallest) / median of the repeats' step times
FREQUENCY_SPREAD = 0.05


def cores():
    """Number of cores that this process may use; threads of one core count once."""
    def siblings(processor):
        file = pathlib.Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        return file.read_text() if file.exists() else processor
    return len({siblings(processor) for processor in os.sched_getaffinity(0)})


def machine():
    names = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"processor": names[0] if names else "unknown processor", "cores": cores()}


def processor_times():
    """Seconds of all processors since the machine started: busy, stolen by the hypervisor, and total."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, wait, irq, soft_irq, steal = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields)
    work = user + nice + system + irq + soft_irq
    return {"work": work, "steal": steal, "all": work + idle + wait + steal}


def expect_quiet(even_if_busy):
    """Asks on a terminal whether to measure although others use this machine, and refuses without."""
    before = processor_times()
    time.sleep(QUIET_SECONDS)
    busy = Watch.share(before, processor_times(), "work")
    if busy <= BUSY_AT_START or even_if_busy:
        return
    text = (f"other programs use {busy:.0%} of this machine's processors (load average {os.getloadavg()[0]:.1f}), so the study "
            "would measure them, too")
    if not sys.stdin.isatty():
        give_up(f"{text}: end them, or give --even-if-busy")
    say(f"{text}. Measure nevertheless? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        give_up("nothing was measured")


def own_seconds():
    """Processor seconds used by this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def fastest_mhz():
    """Current clock of a busy core in MHz. None if unknown."""
    clocks = re.findall(r"^cpu MHz\s*: ([\d.]+)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return max(map(float, clocks), default=None)


class Watch:
    """Observes the machine shortly before and during a `with` block; `found` has the results."""

    def __init__(self, sees_ranks):
        self.sees_ranks = sees_ranks  # they are children of this process, so that other processes can be distinguished
        self.found = {}

    def __enter__(self):
        before = processor_times()
        time.sleep(QUIET_SECONDS)
        self.times, self.own = processor_times(), own_seconds()
        self.found["busy_before"] = self.share(before, self.times, "work")
        self.clocks, self.done = [], threading.Event()
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.sampler.join()
        times = processor_times()
        self.found["steal"] = self.share(self.times, times, "steal")
        self.found["mhz"] = statistics.median(self.clocks) if self.clocks else None
        if self.sees_ranks:
            ours = (own_seconds() - self.own) / max(times["all"] - self.times["all"], 1e-9)
            self.found["others"] = max(0.0, self.share(self.times, times, "work") - ours)

    def sample(self):
        while not self.done.wait(SAMPLE_SECONDS):
            if clock := fastest_mhz():
                self.clocks.append(clock)

    @staticmethod
    def share(before, after, what):
        return (after[what] - before[what]) / max(after["all"] - before["all"], 1e-9)


def crowded(measurement):
    """Whether threads share the cores of a node, which is no measure of scaling."""
    return measurement["ranks_per_node"] * measurement["settings"]["threads"] > measurement["machine"]["cores"]


def warnings(raw, step_seconds):
    """Yields warnings about these measurements. `step_seconds`: ranks -> seconds of every repeat."""
    yield from warnings_of_noise(raw)
    for ranks, seconds in step_seconds.items():
        spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
        if spread > SPREAD:
            yield f"{plural(ranks, 'rank')}: step times of the {len(seconds)} repeats spread by {spread:.0%}"
    clocks = [m["noise"]["mhz"] for m in raw if m["noise"]["mhz"]]
    if clocks and max(clocks) > (1 + FREQUENCY_SPREAD) * min(clocks):
        yield f"the clock of the cores was {min(clocks):,.0f} to {max(clocks):,.0f} MHz"
    if ranks := sorted({m["ranks"] for m in raw if crowded(m)}):
        yield f"{', '.join(map(str, ranks))} ranks: more threads than cores on a node, which is no measure of scaling"
    placed = collections.defaultdict(set)
    for m in raw:
        if m["kind"] != "network":
            placed[m["ranks"]].add(m["nodes"])
    for ranks, nodes in placed.items():
        if len(nodes) > 1:
            yield f"{plural(ranks, 'rank')}: repeats ran on different numbers of nodes ({', '.join(map(str, sorted(nodes)))})"


def warnings_of_noise(raw):
    load = max(m["load_at_begin"] / m["machine"]["cores"] for m in raw)
    if load > LOAD_SHARE:
        yield f"the machine was not idle when the study began: load average {load:.2f} for each core"
    for name, limit, text in (("busy_before", BUSY_SHARE, "other programs used the processors just before"),
                              ("others", OTHERS_SHARE, "other programs used the processors meanwhile"),
                              ("steal", STEAL_SHARE, "the hypervisor took the processors away")):
        shares = [m["noise"][name] for m in raw if name in m["noise"]]
        above = [share for share in shares if share > limit]
        if above:
            yield f"in {len(above)} of {len(shares)} measurements {text} (up to {max(above):.0%} of their time)"
