"""Runs `annulus predict-scaling` on the measurements: one rank's step, the link between nodes, and how ranks disturb each
other. Without a link between nodes the prediction ends with the measured ranks."""
import dataclasses
import functools
import itertools
import json
import math
import os
import statistics

from benchmark import run
from scaling import interference, links
from scaling.noise import crowded
from scaling.settings import load, stored_settings
from scaling.summary import repeats_by_ranks, step_row

MOST_RANKS = 4096
ENDS = ("the link between nodes is unknown, because all ranks were on one node: measure on several (--hosts, --slurm), or give "
        "--latency and --bandwidth, or --network")
LIMIT = 120  # seconds
PREDICTED = ("auto", "message-ring", "doubling")  # its supported all-reduces


def typical(repeats):
    """The repeat with the median step time."""
    return sorted(repeats, key=lambda m: step_row(m)["median_seconds"])[(len(repeats) - 1) // 2]["result"]


def median_all_reduces(sums):
    """The output of `annulus bench all-reduce` with the most ranks: its first repeat, with the medians of all."""
    most = max(m["ranks"] for m in sums)
    repeats = [m["result"] for m in sums if m["ranks"] == most]
    rows = [{**row, "median_seconds": statistics.median(result["rows"][place]["median_seconds"] for result in repeats)}
            for place, row in enumerate(repeats[0]["rows"])]
    return {**repeats[0], "rows": rows}


def rank_counts(settings, measured, ranks_per_node, beyond):
    """Powers of two and the measured numbers of ranks, `beyond` these on full nodes; with strong scaling those that divide
    the batch evenly."""
    most = max(measured)
    counts = {2**n for n in range(MOST_RANKS.bit_length()) if 2**n <= most} | set(measured)
    if beyond:
        counts |= {ranks for n in range(MOST_RANKS.bit_length()) if most < (ranks := ranks_per_node * 2**n) <= MOST_RANKS}
        counts = {ranks for ranks in counts if ranks <= ranks_per_node or ranks % ranks_per_node == 0}
    return sorted(ranks for ranks in counts if settings.scaling == "weak" or settings.batch % ranks == 0)


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
    """Runs the command on one rank's step, which it keeps in `folder` with the command's input and last output."""

    def __init__(self, program, folder, settings, step, ranks_per_node):
        self.program, self.folder, self.settings, self.ranks_per_node = program, folder, settings, ranks_per_node
        folder.mkdir(exist_ok=True)
        (folder / "step.json").write_text(json.dumps(step, indent=1))

    def answer(self, *arguments):
        answer = self.folder / "predicted.json"
        _, failure = run([self.program, "predict-scaling", self.folder / "step.json", *arguments, "--json", answer], LIMIT)
        if failure:
            raise Failed(f"annulus predict-scaling failed: {failure}")
        return json.loads(answer.read_text())

    def fit(self, sums):
        """The Link that fits these measurements of all-reduces."""
        file = self.folder / "all-reduce.json"
        file.write_text(json.dumps(median_all_reduces(sums), indent=1))
        found = self.answer("--fit", file, "--ranks", 1)["link"]
        return links.Link(found["latency_us"], found["bandwidth_gbit_s"], found["source"], found["residual"],
                          one_node=not between_nodes(sums))

    def predict(self, counts, link_options, interference_options):
        """The predictions, with an efficiency relative to N times a single predicted rank; `counts` has 1.
        `interference_options`: ranks on a node -> options."""
        predictions = []
        algorithm = ["--all-reduce", self.settings.all_reduce] if self.settings.all_reduce in PREDICTED else []
        for of_call, on_node, batch in batches(self.settings, counts, self.ranks_per_node):
            predictions += self.answer(*link_options, *algorithm, *interference_options(on_node), "--ranks",
                                       ",".join(map(str, of_call)), *(["--batch", batch] if batch else []))["predictions"]
        alone, = (p[self.settings.speed] for p in predictions if p["ranks"] == 1)
        return [{**p, "efficiency": p[self.settings.speed] / (p["ranks"] * alone)} for p in predictions]


def between_nodes(sums):
    """The all-reduces whose ranks were on a node each."""
    return [m for m in sums if m["nodes"] == m["ranks"] > 1]


def find_link(predictor, sums, network, on_node):
    """The Link, and options for the ranks of a node. `network`: a Link that was given, or None; `on_node`: the all-reduces
    of a full node."""
    link = network or predictor.fit(between_nodes(sums) or sums)
    if link.one_node or predictor.ranks_per_node == 1:
        return link, []
    step = json.loads((predictor.folder / "step.json").read_text())
    found = links.node_options(on_node, predictor.ranks_per_node, predictor.settings.all_reduce,
                               links.typical_bucket(step["profile"]))
    if not found:
        raise Failed(f"all-reduces of {predictor.ranks_per_node} ranks on a node, of two sizes, were not measured")
    return link, found


def errors_of(predictions, measured, name):
    """The largest errors in both directions at measured numbers of ranks, relative to the measured values."""
    found = [p[name] / measured[p["ranks"]] - 1 for p in predictions if p["ranks"] in measured]
    return {"low": min(0.0, *found), "high": max(0.0, *found)}


def with_intervals(predictions, fast, slow, measured, spread, ideal):
    """Adds "NAME_low" and "NAME_high": those of the interference and of the link. If nothing was measured, the largest errors
    at measured numbers of ranks, and at least their `spread`, widen them by each doubling of the ranks. None is above the
    `ideal`: name -> the value of a rank. Returns the errors by name. `measured`: name -> ranks -> value."""
    errors = {name: errors_of(predictions, measured[name], name) for name in measured}
    for p, high, low in zip(predictions, fast, slow):
        for name, values in measured.items():
            distance = 0 if p["ranks"] in values else 1 + max(0.0, math.log2(p["ranks"] / max(values)))
            wider = max(errors[name]["high"], spread) * distance, max(-errors[name]["low"], spread) * distance
            most = ideal[name] * (1 if name == "efficiency" else p["ranks"])
            p[f"{name}_low"] = min(low[name], p[name]) / (1 + wider[0])
            p[f"{name}_high"] = min(most, max(high[name], p[name]) * (1 + wider[1]))
            p[name] = min(p[name], most)
    return errors


def relative_spread(estimate):
    """Half of an interval, relative to the median."""
    return (estimate["high"] - estimate["low"]) / 2 / estimate["median"]


def predict(summary, out, program, network):
    """{"link", "ends", "interference", "errors", "predictions"}, or {"missing": reason}. Speeds and efficiencies have
    intervals (with_intervals()). "ends": the reason why there is no prediction beyond the measured ranks, or null. Beyond
    them, further nodes are as full as the fullest. `network`: a given Link between nodes, or None. Leaves the command's
    input and last output in the folder prediction/."""
    raw = [m for m in load(out) if not crowded(m)]
    by_ranks, sums = repeats_by_ranks(raw), [m for m in raw if m["kind"] in ("all-reduce", "network")]
    if 1 not in by_ranks or not sums:
        return {"missing": "it needs a measured step of 1 rank and all-reduces of several"}
    if not os.access(program, os.X_OK):
        return {"missing": f"{program} not found"}
    if "predict-scaling" not in run([program, "--help"], LIMIT)[0]:
        return {"missing": f"{program} has no command predict-scaling"}
    if not (fitted := interference.fit(by_ranks)):
        return {"missing": "it needs steps of several ranks with and without all-reduces, which steps with --shards are not"}
    settings, full = stored_settings(raw[0]), max(m["ranks_per_node"] for m in raw)
    predictor = Predictor(program, out / "prediction", settings, typical(by_ranks[1]), full)
    try:
        on_node = [row for m in sums if m["nodes"] == 1 and m["ranks"] == full for row in m["result"]["rows"]]
        link, on_nodes = find_link(predictor, sums, network, on_node)
        counts = rank_counts(settings, by_ranks, full, not link.one_node)
        predictions, fast, slow = (
            predictor.predict(counts, [*link.options(end), *on_nodes], functools.partial(interference.options, fitted, end))
            for end in ("median", "low", "high"))
    except Failed as reason:
        return {"missing": str(reason)}
    measured = {settings.speed: {s["ranks"]: s[settings.speed]["median"] for s in summary["steps"]},
                "efficiency": {s["ranks"]: s["efficiency"]["value"] for s in summary["steps"]}}
    alone, = (p[settings.speed] for p in predictions if p["ranks"] == 1)
    errors = with_intervals(predictions, fast, slow, measured, relative_spread(summary["steps"][-1][settings.speed]),
                            {settings.speed: alone, "efficiency": 1})
    return {"link": dataclasses.asdict(link), "ends": ENDS if link.one_node else None, "interference": fitted,
            "ranks_per_node": full, "errors": errors, "predictions": predictions}
