"""Extra-P's JSON of a study's steps (parameter: ranks; call paths: the ledger's parts), and Extra-P's models, if it is installed."""
import json
import math
import re
import shutil

from benchmark import run
from scaling.settings import load
from scaling.summary import LEDGER, repeats_by_ranks, step_row

LIMIT = 120  # seconds
FEWEST = 5   # numbers of ranks that Extra-P's models need
PREDICTED = {"step": "step_ms", "step->compute": "compute_ms", "step->exposed_communication": "exposed_ms",
             "step->waiting_for_slower_ranks": "waiting_ms"}  # what annulus predict-scaling has of them


def times_of(measurement):
    """Seconds of the median step by call path: the whole, and the ledger's parts."""
    row = step_row(measurement)
    whole = sum(row["ledger"][part] for part in LEDGER)
    return {"step": row["median_seconds"],
            **{f"step->{part}": row["median_seconds"] * row["ledger"][part] / whole for part in LEDGER}}


def experiment(raw):
    """Every repeat's times with each number of ranks."""
    found = {}
    for ranks, repeats in repeats_by_ranks(raw).items():
        times = [times_of(m) for m in repeats]
        for path in times[0]:
            found.setdefault(path, {"time": []})["time"].append({"point": [ranks], "values": [of[path] for of in times]})
    return {"parameters": ["p"], "measurements": found}


def write_file(out, file):
    file.write_text(json.dumps(experiment(load(out)), indent=1) + "\n")


def models(file):
    """Call path -> Extra-P's model as text, of seconds with p ranks; {} without Extra-P, or with too few numbers of ranks."""
    points = json.loads(file.read_text())["measurements"]["step"]["time"]
    if len(points) < FEWEST or not shutil.which("extrap"):
        return {}
    answer, failure = run(["extrap", "--json", file, "--disable-progress", "--print", "{callpath} = {model}"], LIMIT)
    return {} if failure else dict(re.findall(r"(?m)^(step\S*) = (.+)$", answer))


def value(model, ranks):
    """Seconds; the text has numbers, p, +, *, ^ and log2() only."""
    if not re.fullmatch(r"(?:log2\(p\)|[-\d.ep+*/^() ])+", model):
        raise ValueError(f"no model of Extra-P: {model}")
    return eval(model.replace("^", "**"), {"__builtins__": {}}, {"p": ranks, "log2": math.log2})  # noqa: S307
