"""What is measured: the settings that a study's measurements have in common, the measurements, and where they are kept."""
import dataclasses
import hashlib
import json

from benchmark import give_up


@dataclasses.dataclass(frozen=True)
class Settings:
    """With others than these, measurements do not belong together."""
    model: str
    image: str          # height x width x channels
    classes: int
    scaling: str        # "weak": `batch` is of each rank; "strong": of all ranks together
    batch: int
    threads: int        # of each rank
    all_reduce: str
    step_options: list  # further ones of `annulus bench step`
    sizes: list         # of sums, bytes
    seconds: float      # of measuring each step and each size
    program: str        # which build: the beginning of its SHA-256

    def batch_per_rank(self, ranks):
        return self.batch if self.scaling == "weak" else self.batch // ranks

    @property
    def batch_text(self):
        return f"{self.batch} images {'a rank' if self.scaling == 'weak' else 'in all'}"


def hash_of(program):
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Measurement:
    kind: str    # "step" or "all-reduce"
    ranks: int
    repeat: int  # from 1

    @property
    def file_name(self):
        return f"{self.kind}-{self.ranks}-ranks-{self.repeat}.json"


def plan(rank_counts, repeats):
    """In rounds over the numbers of ranks, so that a machine that drifts drifts for all of them."""
    return [Measurement(kind, ranks, repeat) for repeat in range(1, repeats + 1) for ranks in rank_counts
            for kind in ("step", "all-reduce") if ranks > 1 or kind == "step"]


def missing(out, measurements):
    return [m for m in measurements if not (out / "raw" / m.file_name).exists()]


# What the reports use of a measurement, and of each row that `annulus bench` wrote.
MEASUREMENT = {"kind", "ranks", "repeat", "settings", "machine", "noise", "load_at_begin", "host", "nodes", "ranks_per_node",
               "result"}
ROW = {"step": {"images_per_second", "median_seconds", "batch", "steps", "ledger"},
       "all-reduce": {"algorithm", "bytes", "median_seconds", "algbw_bytes_per_second", "busbw_bytes_per_second"}}


class CannotRead(Exception):
    """Which file, and why not."""


def read_json(file):
    """An object that a program of ours has written."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CannotRead(f"{file} cannot be read: {error}; if it is damaged, delete it and measure again") from error
    if not isinstance(found, dict) or not found.keys() & {"kind", "rows"}:
        raise CannotRead(f"{file} is neither a study's measurement nor a table of annulus bench")
    rows = found.get("rows", found.get("result", {}).get("rows") if isinstance(found.get("result"), dict) else None)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "ranks" in row for row in rows):
        raise CannotRead(f"{file} has no rows of annulus bench; delete it and measure again")
    return found


def read_measurement(file):
    found = read_json(file)
    parts = [("", found, MEASUREMENT), ("settings", found.get("settings"), {f.name for f in dataclasses.fields(Settings)}),
             ("machine", found.get("machine"), {"processor", "cores"}), ("noise", found.get("noise"), {"mhz"}),
             *(("a row", row, ROW.get(found.get("kind"), ROW["step"])) for row in found.get("result", found)["rows"])]
    for part, values, wanted in parts:
        if lacking := sorted(wanted - (values.keys() if isinstance(values, dict) else set())):
            raise CannotRead(f"{file} is no measurement of a study: {', '.join(lacking)} is missing"
                             f"{' in ' + part if part else ''}; delete it and measure again")
    return found


def load(out):
    """Every measurement that the folder holds; by ranks, then by repeats."""
    raw = [read_measurement(file) for file in (out / "raw").glob("*.json")]
    return sorted(raw, key=lambda m: (m["kind"], m["ranks"], m["repeat"]))


def expect_same(out, settings, machine):
    """What the folder holds must have been measured with the same settings, on such a machine."""
    wanted = {**dataclasses.asdict(settings), **machine}
    for m in load(out):
        found = {**m["settings"], **m["machine"]}
        for name, value in wanted.items():
            if found[name] != value:
                give_up(f"{out} holds measurements with other settings: {name} is {found[name]} there, and {value} here; "
                        "give another --out")
