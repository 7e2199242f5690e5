"""Shared by the benchmarks: sizes, running programs with a time limit, medians of rounds, tables, targets."""
import csv
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The repository's program, or that of the installation whose share/annulus ROOT is.
PROGRAM = ROOT / "build/annulus" if (ROOT / "scripts/build").exists() else ROOT.parents[1] / "bin/annulus"
ANNULUS = pathlib.Path(os.environ.get("ANNULUS", PROGRAM))  # if set, it is measured unchanged and not built
KIB, MIB = 1 << 10, 1 << 20

TUNED = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm"]
OPEN_MPI_RING = [*TUNED, "4"]


def say(text):
    print(f"{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)


def give_up(text):
    say(text)
    sys.exit(1)


def words(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def plural(count, noun):
    return f"{count} {noun}{'s' * (count != 1)}"


def parse_size(text):
    parts = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)?", text)
    if not parts:
        raise ValueError(f"{text} is no size, such as 64KiB")
    number, unit = parts.groups()
    return int(number) * {"KiB": KIB, "MiB": MIB, "GiB": KIB * MIB}.get(unit, 1)


def parse_sizes(text):
    return [parse_size(word) for word in words(text)]


def format_size(size):
    for unit, name in ((KIB * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


# --- Programs ---------------------------------------------------------------------------------------------------------

def pinned_mpirun(ranks, threads):
    """Starts ranks on cores of their own."""
    return ["mpirun", "-np", ranks, "--map-by", f"slot:PE={threads}", "--bind-to", "core"]


def build_annulus():
    if "ANNULUS" in os.environ:
        return
    if subprocess.run([ROOT / "scripts/build", "build"], env={**os.environ, "TARGETS": "annulus"},
                      stdout=sys.stderr).returncode != 0:
        give_up("Annulus could not be built")


def run(command, limit, environment=None):
    """Returns the output, and the reason of the failure or None."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1",
                   # Open MPI runs as root only with both of these.
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **(environment or {})}
    process = subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher ends its ranks itself, on all hosts
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return out, f"stopped after {limit} s"
    except BaseException:
        process.terminate()
        raise
    return out, None if process.returncode == 0 else f"exit status {process.returncode}: {last_line(err or out)}"


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip(" -")]
    ours = [line for line in lines if line.startswith("annulus:")]
    return (ours or lines or [""])[-1]


def run_annulus(start, arguments, limit, environment=None, program=ANNULUS, folder=None):
    """Runs `annulus bench` under the launcher `start`. Returns its --json output and None, or None and the reason of the
    failure. With ranks on several nodes, `folder` must be on a shared file system."""
    with tempfile.NamedTemporaryFile(suffix=".json.new", dir=folder) as file:
        _, failure = run([*start, program, "bench", *arguments, "--json", file.name], limit, environment)
        return (None, failure) if failure else (json.load(open(file.name)), None)


def write(path, text):
    """Writes a file atomically."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def random_images(path, counts, shape, classes):
    """Creates a data file (src/data/FORMAT.md) of random images once, with a number of images for each split."""
    if path.exists():
        return path
    import h5py  # installed by scripts/setup
    import numpy as np
    part = path.with_name(f"part-{path.name}")
    with h5py.File(part, "w") as file:
        half = np.float32([0.5] * shape[2])
        file.attrs.update({"classes": [str(label) for label in range(classes)], "mean": half, "deviation": half})
        for split, count in counts.items():
            file[f"{split}/labels"] = np.arange(count, dtype=np.int32) % classes
            file[f"{split}/images"] = np.random.default_rng(1).integers(0, 256, (count, *shape), dtype=np.uint8)
    part.rename(path)
    return path


# --- Measured ---------------------------------------------------------------------------------------------------------

class Measured:
    """Rows of one number of ranks: (algorithm, bytes) -> a row for each round."""

    def __init__(self, ranks):
        self.ranks, self.rows, self.ours, self.peers = ranks, {}, [], []

    def add(self, row):
        self.rows.setdefault((row["algorithm"], row["bytes"]), []).append(row)

    def seconds(self, name, size):
        rows = self.rows.get((name, size))
        return statistics.median(row["median_seconds"] for row in rows) if rows else None

    def best(self, names, size):
        """(seconds, name) of the fastest at this size, or None."""
        return min(((self.seconds(name, size), name) for name in names if (name, size) in self.rows), default=None)

    def busbw(self, name, size):
        return size / self.seconds(name, size) * 2 * (self.ranks - 1) / self.ranks


def microseconds(seconds):
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def times(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}",
                      *(f"| {' | '.join(row)} |" for row in rows)])


def write_csv(path, all_measured):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ranks", "algorithm", "bytes", "median_seconds", "min_seconds", "lowest_round_seconds",
                         "highest_round_seconds", "rounds", "iterations", "busbw_bytes_per_second"])
        for measured in all_measured:
            for (name, size), rows in sorted(measured.rows.items()):
                medians = [row["median_seconds"] for row in rows]
                writer.writerow([measured.ranks, name, size, f"{statistics.median(medians):.9g}",
                                 f"{min(row['min_seconds'] for row in rows):.9g}", f"{min(medians):.9g}",
                                 f"{max(medians):.9g}", len(rows), sum(row["iterations"] for row in rows),
                                 f"{measured.busbw(name, size):.6g}"])


def drawing():
    """matplotlib.pyplot with deterministic files. Raises ImportError."""
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "annulus"
    from matplotlib import pyplot
    return pyplot


def size_axis(axes, sizes):
    from matplotlib.ticker import NullLocator
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=40, ha="right")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)


def check_targets(targets):
    """`targets`: (row, what, value, at least or at most, limit); value is None if not measured."""
    missed = judged = 0
    for row, what, value, direction, wanted in targets:
        judged += 1
        if value is None:
            missed += 1
            print(f"MISSED  {row}: {what}: not measured")
            continue
        margin = value / wanted - 1 if direction == "at least" else 1 - value / wanted
        missed += margin < 0
        print(f"{'met   ' if margin >= 0 else 'MISSED'}  {row}: {value:.2f} {what}, {direction} {wanted}: "
              f"{'met with' if margin >= 0 else 'missed by'} {abs(margin):.0%}{' to spare' if margin >= 0 else ''}")
    print(f"{judged - missed} of {judged} targets met")
    return judged > 0 and missed == 0
