"""data.csv: a row for each measurement of a step and for each size and algorithm of an all-reduce; units are in the header."""
import csv
import io

from scaling.energy import power_of
from scaling.settings import load, stored_settings
from scaling.summary import LEDGER, step_row

HEAD = ["scaling", "kind", "nodes", "ranks", "ranks per node", "repeat", "began (UTC)", "host", "load average at the begin",
        "batch per rank (samples)", "global batch (samples)", "steps timed", "median step (s)", "speed (images/s or tokens/s)",
        "computing (s)", "power of all nodes (W)", *(f"{part.replace('_', ' ')} (share of the step)" for part in LEDGER),
        "algorithm", "size (B)", "all-reduce (s)", "algbw (B/s)", "busbw (B/s)"]


def rows_of(m, meter):
    settings = stored_settings(m)
    common = [settings.scaling, m["kind"], m["nodes"], m["ranks"], m["ranks_per_node"], m["repeat"], m.get("began", ""), m["host"],
              f"{m['load_at_begin']:.2f}"]
    if m["kind"] != "step":
        for row in m["result"]["rows"]:
            yield [*common, *[""] * (len(HEAD) - len(common) - 5), row["algorithm"], row["bytes"], row["median_seconds"],
                   row["algbw_bytes_per_second"], row["busbw_bytes_per_second"]]
        return
    row = step_row(m)
    whole, power = sum(row["ledger"][part] for part in LEDGER), power_of([m], meter)
    yield [*common, row["batch"], row["batch"] * m["ranks"], row["steps"], row["median_seconds"], row[settings.speed],
           row["compute_seconds"], power["median"] if power else "", *(f"{row['ledger'][part] / whole:.6f}" for part in LEDGER), *[""] * 5]


def text(folders, meter=None):
    """The table of the studies in these folders. `meter`: an energy.Meter, or None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    for folder in folders:
        for m in load(folder):
            writer.writerows(rows_of(m, meter))
    return out.getvalue()
