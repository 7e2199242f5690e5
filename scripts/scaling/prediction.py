"""Runs `annulus predict-scaling` on the measurements: one rank's step, the all-reduces of the most ranks, and how ranks
disturb each other."""
import functools
import itertools
import json
import os
import statistics

from benchmark import run
from scaling import interference
from scaling.settings import load, stored_settings
from scaling.summary import repeats_by_ranks, step_row

MOST_RANKS = 4096
LIMIT = 120  # seconds
PREDICTED = ("auto", "message-ring", "doubling")  # its supported all-reduces


def typical(repeats):
    """The repeat with the median step time."""
    return sorted(repeats, key=lambda m: step_row(m)["median_seconds"])[(len(repeats) - 1) // 2]["result"]


def median_all_reduces(raw):
    """The output of `annulus bench all-reduce` with the most ranks: its first repeat, with the medians of all."""
    most = max(m["ranks"] for m in raw)
    repeats = [m["result"] for m in raw if m["ranks"] == most]
    rows = [{**row, "median_seconds": statistics.median(result["rows"][place]["median_seconds"] for result in repeats)}
            for place, row in enumerate(repeats[0]["rows"])]
    return {**repeats[0], "rows": rows}


def rank_counts(settings, measured):
    """Powers of two and the measured numbers of ranks; with strong scaling those that divide the batch evenly."""
    counts = sorted({2**n for n in range(MOST_RANKS.bit_length())} | set(measured))
    return [ranks for ranks in counts if settings.scaling == "weak" or settings.batch % ranks == 0]


def batches(settings, counts, ranks_per_node):
    """Yields (numbers of ranks of a call, ranks on a node, batch per rank or None): calls of predict-scaling."""
    if settings.scaling == "strong":
        yield from (([ranks], min(ranks, ranks_per_node), settings.batch_per_rank(ranks)) for ranks in counts)
        return
    for on_node, of_call in itertools.groupby(counts, lambda ranks: min(ranks, ranks_per_node)):
        yield list(of_call), on_node, None


class Failed(Exception):
    """The reason."""


class Predictor:
    """Runs the command on one rank's step and the all-reduces of the most ranks, which it keeps in `folder`."""

    def __init__(self, program, folder, settings, step, all_reduces):
        self.program, self.folder, self.settings = program, folder, settings
        folder.mkdir(exist_ok=True)
        (folder / "step.json").write_text(json.dumps(step, indent=1))
        (folder / "all-reduce.json").write_text(json.dumps(all_reduces, indent=1))

    def predict(self, counts, ranks_per_node, interference_options):
        """The link and the predictions, with an efficiency relative to N times a single predicted rank; `counts` has 1.
        `interference_options`: ranks on a node -> options."""
        answer, predictions = self.folder / "predicted.json", []
        algorithm = ["--all-reduce", self.settings.all_reduce] if self.settings.all_reduce in PREDICTED else []
        for of_call, on_node, batch in batches(self.settings, counts, ranks_per_node):
            _, failure = run([self.program, "predict-scaling", self.folder / "step.json", "--fit",
                              self.folder / "all-reduce.json", *algorithm, *interference_options(on_node), "--ranks",
                              ",".join(map(str, of_call)), *(["--batch", batch] if batch else []), "--json", answer], LIMIT)
            if failure:
                raise Failed(f"annulus predict-scaling failed: {failure}")
            found = json.loads(answer.read_text())
            predictions += found["predictions"]
        alone, = (p[self.settings.speed] for p in predictions if p["ranks"] == 1)
        return found["link"], [{**p, "efficiency": p[self.settings.speed] / (p["ranks"] * alone)} for p in predictions]


def errors_of(predictions, measured, name):
    """The largest errors in both directions at measured numbers of ranks, relative to the measured values."""
    found = [p[name] / measured[p["ranks"]] - 1 for p in predictions if p["ranks"] in measured]
    return {"low": min(0.0, *found), "high": max(0.0, *found)}


def with_intervals(predictions, fast, slow, measured, names):
    """Adds "NAME_low" and "NAME_high": those of the interference; where nothing was measured, widened by the largest errors
    at measured numbers of ranks. Returns these errors by name. `measured`: name -> ranks -> value."""
    errors = {name: errors_of(predictions, measured[name], name) for name in names}
    for p, high, low in zip(predictions, fast, slow):
        for name in names:
            wider = {"low": 0, "high": 0} if p["ranks"] in measured[name] else errors[name]
            p[f"{name}_low"], p[f"{name}_high"] = low[name] / (1 + wider["high"]), high[name] / (1 + wider["low"])
    return errors


def predict(summary, out, program):
    """{"link", "interference", "errors", "predictions"}, or {"missing": reason}. Speeds and efficiencies have intervals
    (with_intervals()). Beyond the measured numbers of ranks, further nodes are as full as the fullest. Leaves the
    command's input and last output in the folder prediction/."""
    raw = load(out)
    by_ranks, sums = repeats_by_ranks(raw), [m for m in raw if m["kind"] == "all-reduce"]
    if 1 not in by_ranks or not sums:
        return {"missing": "it needs a measured step of 1 rank and all-reduces of several"}
    if not os.access(program, os.X_OK):
        return {"missing": f"{program} not found"}
    if "predict-scaling" not in run([program, "--help"], LIMIT)[0]:
        return {"missing": f"{program} has no command predict-scaling"}
    if not (fitted := interference.fit(by_ranks)):
        return {"missing": "it needs steps of several ranks with and without all-reduces, which steps with --shards are not"}
    settings = stored_settings(raw[0])
    predictor = Predictor(program, out / "prediction", settings, typical(by_ranks[1]), median_all_reduces(sums))
    counts, full = rank_counts(settings, by_ranks), max(m["ranks_per_node"] for m in raw)
    try:
        (link, predictions), (_, fast), (_, slow) = (
            predictor.predict(counts, full, functools.partial(interference.options, fitted, end))
            for end in ("median", "low", "high"))
    except Failed as reason:
        return {"missing": str(reason)}
    measured = {settings.speed: {s["ranks"]: s[settings.speed]["median"] for s in summary["steps"]},
                "efficiency": {s["ranks"]: s["efficiency"]["value"] for s in summary["steps"]}}
    errors = with_intervals(predictions, fast, slow, measured, (settings.speed, "efficiency"))
    return {"link": link, "interference": fitted, "ranks_per_node": full, "errors": errors, "predictions": predictions}
