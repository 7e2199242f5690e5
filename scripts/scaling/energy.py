"""The mean power of a measurement's nodes in watts: of a watt-meter's CSV, of Slurm's accounting, or of the program's counters.

Each is None if it is unknown. The program's counters cover the timed steps only; the others cover the measurement from start to
end."""
import csv
import datetime
import os
import statistics
import subprocess

from benchmark import give_up
from scaling.estimates import median_interval

LEAST_SECONDS = 5    # of a job step, because Slurm counts whole seconds
LONGEST_GAP = 10     # seconds between a watt-meter's samples


def seconds_of(text):
    """Unix seconds, or ISO 8601, of which UTC is assumed if it names no zone."""
    try:
        return float(text)
    except ValueError:
        time = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return (time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)).timestamp()


class Meter:
    """A watt-meter's CSV of all measured nodes together: time and watts in the first two columns, with or without a header."""
    source = "watt-meter"

    def __init__(self, file):
        samples = []
        try:
            with open(file, newline="") as lines:
                for number, row in enumerate(csv.reader(lines)):
                    try:
                        samples.append((seconds_of(row[0]), float(row[1])))
                    except (ValueError, IndexError):
                        if number or not row:
                            give_up(f"--energy-csv {file}: line {number + 1} is not a time and watts: {','.join(row)[:60]}")
        except OSError as error:
            give_up(f"--energy-csv {file}: {error.strerror}")
        self.samples = sorted(samples)

    def joules(self, begin, end):
        """Between two times; None if the samples do not cover them."""
        inside = [(time, watts) for time, watts in self.samples if begin - LONGEST_GAP <= time <= end + LONGEST_GAP]
        if not inside or inside[0][0] > begin or inside[-1][0] < end:
            return None
        joules = 0
        for (t0, w0), (t1, w1) in zip(inside, inside[1:]):
            if t1 <= begin or t0 >= end:
                continue
            if t1 - t0 > LONGEST_GAP:
                return None
            low, high = max(t0, begin), min(t1, end)
            at = [w0 + (w1 - w0) * (t - t0) / (t1 - t0) for t in (low, high)]
            joules += (high - low) * sum(at) / 2
        return joules

    def watts(self, measurement):
        if "ended" not in measurement:
            return None
        begin, end = seconds_of(measurement["began"]), seconds_of(measurement["ended"])
        joules = self.joules(begin, end)
        return joules / (end - begin) if joules and end > begin else None


class Slurm:
    source = "sacct ConsumedEnergy"

    def watts(self, measurement):
        found = measurement.get("sacct")
        return found["joules"] / found["seconds"] if found else None


class Counters:
    source = "the program's counters"

    def watts(self, measurement):
        row = measurement["result"]["rows"][0]
        energy, ledger = row.get("energy"), row["ledger"]
        return energy["joules_per_step"] * ledger["steps"] / ledger["wall"] if isinstance(energy, dict) else None


def read_sacct():
    """The last step of this Slurm job: {"joules", "seconds"}; None if Slurm does not count energy."""
    try:
        text = subprocess.run(["sacct", "-n", "-P", "-j", os.environ["SLURM_JOB_ID"], "--format=JobID,ConsumedEnergyRaw,ElapsedRaw"],
                              capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, KeyError, subprocess.SubprocessError):
        return None
    steps = [fields for line in text.splitlines() if len(fields := line.split("|")) == 3 and fields[0].rpartition(".")[2].isdigit()
             and "." in fields[0]]
    if not steps:
        return None
    _, joules, seconds = max(steps, key=lambda fields: int(fields[0].rpartition(".")[2]))
    if not joules.isdigit() or int(joules) == 0 or not seconds.isdigit() or int(seconds) < LEAST_SECONDS:
        return None
    return {"joules": int(joules), "seconds": int(seconds)}


def power_of(repeats, meter=None):
    """The power in all repeats of a measurement, by the first source that all have: {"median", "low", "high", "values", "source"},
    or None."""
    for source in ([meter] if meter else []) + [Slurm(), Counters()]:
        values = [source.watts(m) for m in repeats]
        if None not in values:
            interval = median_interval(values)
            return {"median": statistics.median(values), "low": interval.low, "high": interval.high, "values": values,
                    "source": source.source}
    return None
