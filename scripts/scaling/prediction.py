"""Runs `annulus predict-scaling` on the measurements: one rank's step, and the all-reduces of the most ranks."""
import json
import os
import statistics

from benchmark import run
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


def calls(settings, counts):
    """Lists of arguments, each for one batch per rank."""
    algorithm = ["--all-reduce", settings.all_reduce] if settings.all_reduce in PREDICTED else []
    if settings.scaling == "weak":
        return [[*algorithm, "--ranks", ",".join(map(str, counts))]]
    return [[*algorithm, "--ranks", ranks, "--batch", settings.batch_per_rank(ranks)] for ranks in counts]


def predict(out, program):
    """{"link", "predictions"} from the command's output, or {"missing": reason}; also with strong scaling, efficiency is
    relative to N times a single predicted rank. Leaves the command's input and last output in the folder prediction/."""
    raw = load(out)
    by_ranks, sums = repeats_by_ranks(raw), [m for m in raw if m["kind"] == "all-reduce"]
    if 1 not in by_ranks or not sums:
        return {"missing": "it needs a measured step of 1 rank and all-reduces of several"}
    if not os.access(program, os.X_OK):
        return {"missing": f"{program} not found"}
    if "predict-scaling" not in run([program, "--help"], LIMIT)[0]:
        return {"missing": f"{program} has no command predict-scaling"}
    folder, settings = out / "prediction", stored_settings(raw[0])
    folder.mkdir(exist_ok=True)
    step, fit, answer = (folder / name for name in ("step.json", "all-reduce.json", "predicted.json"))
    step.write_text(json.dumps(typical(by_ranks[1]), indent=1))
    fit.write_text(json.dumps(median_all_reduces(sums), indent=1))
    predictions = []
    for arguments in calls(settings, rank_counts(settings, by_ranks)):
        _, failure = run([program, "predict-scaling", step, "--fit", fit, *arguments, "--json", answer], LIMIT)
        if failure:
            return {"missing": f"annulus predict-scaling failed: {failure}"}
        found = json.loads(answer.read_text())
        predictions += found["predictions"]
    alone, = (p[settings.speed] for p in predictions if p["ranks"] == 1)
    return {"link": found["link"], "predictions": [
        {**p, "efficiency": p[settings.speed] / (p["ranks"] * alone)} for p in predictions]}
