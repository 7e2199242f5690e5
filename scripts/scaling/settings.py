"""The common settings of a study's measurements, the measurements, and their files."""
import dataclasses
import hashlib
import json
import os

from benchmark import give_up


@dataclasses.dataclass(frozen=True)
class Settings:
    """All measurements of a study have the same settings."""
    model: str
    image: str          # height x width x channels; empty: that of `data`
    classes: int        # 0: those of `data`
    scaling: str        # "weak": `batch` is per rank; "strong": it is the global batch
    batch: int
    threads: int        # per rank
    all_reduce: str
    step_options: list  # further options of `annulus bench step`
    sizes: list         # sizes of all-reduces, bytes
    seconds: float      # duration of each step measurement
    program: str        # identifies the build: the beginning of its SHA-256
    length: int = 0     # of a language model's windows, in tokens, instead of an image; 0: samples are images
    vocabulary: int = 0  # instead of classes; 0: the model's, or that of `data`
    data: str = ""      # file whose samples are used; empty: random samples

    @property
    def unit(self):
        """What speeds count."""
        return "tokens" if self.length else "images"

    @property
    def speed(self):
        """The speed's name in a row."""
        return f"{self.unit}_per_second"

    @property
    def samples(self):
        """What batches count."""
        return "windows" if self.length else "images"

    def batch_per_rank(self, ranks):
        return self.batch if self.scaling == "weak" else self.batch // ranks

    @property
    def batch_text(self):
        return f"{self.batch} {self.samples} {'per rank' if self.scaling == 'weak' else 'in total'}"


def stored_settings(summary):
    """Returns the settings of a summary or a measurement."""
    return Settings(**summary["settings"])


def hash_of(program):
    if not os.access(program, os.X_OK):
        give_up(f"no program {program}: build it with scripts/build, or set --program")
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Measurement:
    kind: str    # "step", "all-reduce", or "network": all-reduces of one rank on each node
    ranks: int
    repeat: int  # from 1

    @property
    def file_name(self):
        return f"{self.kind}-{self.ranks}-ranks-{self.repeat}.json"


def plan(rank_counts, repeats, nodes=1):
    """In rounds over the numbers of ranks, so that a drift of the machine affects all of them. `nodes`: whose network is
    measured, if above 1."""
    network = [("network", nodes)] if nodes > 1 else []
    return [Measurement(kind, ranks, repeat) for repeat in range(1, repeats + 1)
            for kind, ranks in [(kind, ranks) for ranks in rank_counts for kind in ("step", "all-reduce")
                                if ranks > 1 or kind == "step"] + network]


def missing(out, measurements):
    return [m for m in measurements if not (out / "raw" / m.file_name).exists()]


# The fields of a measurement, and of each row of `annulus bench`, that the reports use.
MEASUREMENT = {"kind", "ranks", "repeat", "settings", "machine", "noise", "load_at_begin", "host", "nodes", "ranks_per_node",
               "result"}
ROW = {"step": {"algorithm", "median_seconds", "compute_seconds", "batch", "steps", "ledger"},
       "all-reduce": {"algorithm", "bytes", "median_seconds", "algbw_bytes_per_second", "busbw_bytes_per_second"}}


def speed_name(row):
    """The speed's name in a row of `annulus bench step`."""
    return "tokens_per_second" if "tokens_per_second" in row else "images_per_second"


class CannotRead(Exception):
    """The file and the reason."""


def read_json(file):
    """A JSON object written by one of our programs."""
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
    settings = {f.name for f in dataclasses.fields(Settings) if f.default is dataclasses.MISSING}
    parts = [("", found, MEASUREMENT), ("settings", found.get("settings"), settings),
             ("machine", found.get("machine"), {"processor", "cores"}), ("noise", found.get("noise"), {"mhz"}),
             *(("a row", row, ROW["all-reduce"] if found.get("kind") in ("all-reduce", "network") else ROW["step"] | {speed_name(row)})
               for row in found.get("result", found)["rows"])]
    for part, values, wanted in parts:
        if lacking := sorted(wanted - (values.keys() if isinstance(values, dict) else set())):
            raise CannotRead(f"{file} is no measurement of a study: {', '.join(lacking)} is missing"
                             f"{' in ' + part if part else ''}; delete it and measure again")
    return found


def load(out):
    """All measurements in the folder, ordered by ranks, then by repeats."""
    raw = [read_measurement(file) for file in (out / "raw").glob("*.json")]
    return sorted(raw, key=lambda m: (m["kind"], m["ranks"], m["repeat"]))


def expect_equal(place, found, wanted):
    """What is stored at this place must have been measured with these settings."""
    for name, value in wanted.items():
        if found.get(name) != value:
            give_up(f"{place} was measured with other settings: {name} is {found.get(name)} there, and {value} here; "
                    "give another --out")


def expect_same(out, settings, machine):
    """The folder's measurements must have the same settings and kind of machine."""
    for m in load(out):
        expect_equal(out, {**dataclasses.asdict(stored_settings(m)), **m["machine"]},
                     {**dataclasses.asdict(settings), **machine})
