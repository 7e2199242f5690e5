"""The time until an evaluation reaches a goal, with each number of ranks: trained, and predicted.

DIR/goal has a file for each training. A prediction multiplies
- the steps: those of the fewest ranks, times (1 + noise / batch) relative to their batch (time_to_loss.py), with the
  gradient-noise scale that the trainings measured; with the same global batch the steps are the same;
- the samples of a step by the predicted speed.
So only the fewest ranks' trainings are used, and each other number of ranks judges the prediction."""
import argparse
import json
import pathlib
import shlex
import statistics
import tempfile

from benchmark import plural, run, say, write
from scaling import status
from scaling.runner import Launcher
from scaling.settings import expect_equal, hash_of, stored_settings
from scaling.time_to_loss import speeds_of, steps

FOLDER = "goal"


def global_batch(options, ranks):
    return options.batch * (ranks if options.scaling == "weak" else 1)


def settings_of(options, launcher):
    return {"model": options.model, "data": str(options.data.resolve()), "scaling": options.scaling, "batch": options.batch,
            "goal": options.to, "epochs": options.epochs, "threads": launcher.threads,
            "train_options": options.train_options, "program": hash_of(options.program)}


def train(ranks, seed, launcher, options):
    """Returns what is kept of results.json and None, or None and the reason of the failure."""
    with tempfile.TemporaryDirectory(dir=options.out, prefix="run-") as folder:
        out = pathlib.Path(folder) / "run"
        _, failure = run([*launcher.start(ranks), options.program, "train", "--data", options.data, "--model", options.model,
                          "--global-batch", global_batch(options, ranks), "--epochs", options.epochs, "--until", options.to,
                          "--threads", launcher.threads, "--seed", seed, "--out", out,
                          *shlex.split(options.train_options)], options.limit, {"OMP_NUM_THREADS": str(launcher.threads)})
        if failure:
            return None, failure
        found = json.loads((out / "results.json").read_text())
    if not found.get("ended_by", "").startswith("--until"):
        return None, f"{options.to} was not reached in {plural(options.epochs, 'epoch')}"
    measure = f"test_{options.to.partition('=')[0]}"
    return {"steps": found["evaluations"][-1]["step"], "seconds": sum(epoch["seconds"] for epoch in found["epochs"]),
            "noise": found.get("gradient_noise", {}).get("scale"),
            "evaluations": [[evaluation["step"], evaluation[measure]] for evaluation in found["evaluations"]]}, None


def train_all(options):
    """Trains what is missing. Returns whether everything is there."""
    launcher = Launcher(options)
    settings = settings_of(options, launcher)
    (options.out / FOLDER).mkdir(exist_ok=True)
    failed = set()
    for seed in range(1, options.seeds + 1):
        for ranks in options.ranks:
            file = options.out / FOLDER / f"{ranks}-ranks-{seed}.json"
            if file.exists():
                expect_equal(file, json.loads(file.read_text())["settings"], settings)
            if file.exists() or ranks in failed:
                continue
            what = f"{options.to} on {plural(ranks, 'rank')}, seed {seed}: "
            status.show(f"study: {what}training")
            try:
                found, failure = train(ranks, seed, launcher, options)
            finally:
                status.show("")
            say(what + (f"FAILED, its other seeds are skipped: {failure}" if failure else f"{found['seconds']:.1f} s"))
            if failure:
                failed.add(ranks)
            else:
                write(file, json.dumps({"settings": settings, "ranks": ranks, "result": found}, indent=1) + "\n")
    return not failed


def load(out):
    """The goal, and ranks -> results; nothing if the study has no goal."""
    found = [json.loads(file.read_text()) for file in sorted((out / FOLDER).glob("*.json"))]
    by_ranks = {}
    for training in found:
        by_ranks.setdefault(training["ranks"], []).append(training["result"])
    return (found[0]["settings"]["goal"], dict(sorted(by_ranks.items()))) if found else (None, {})


def curve(results, batch):
    """[[samples, value]]: medians of the seeds' evaluations."""
    values = {}
    for result in results:
        for step, value in result.get("evaluations", []):  # earlier studies have none
            values.setdefault(step * batch, []).append(value)
    return [[samples, statistics.median(found)] for samples, found in sorted(values.items())]


def time_to_goal(summary, out):
    """{"goal", "noise", "baseline_ranks", "rows": [{"ranks", "global_batch", "steps", "seconds", "predicted_steps",
    "predicted_seconds", "curve"}]}, with null for what was not measured, or is not predicted; None without trainings."""
    goal, trained = load(out)
    if not trained:
        return None
    name = stored_settings(summary).speed
    base = min(trained)
    scales = [result["noise"] for results in trained.values() for result in results if result["noise"]]
    noise = statistics.median(scales) if scales else None
    predicted_speeds = {p["ranks"]: p[name] for p in summary["prediction"].get("predictions", [])}
    speeds = speeds_of(summary)
    samples_of_one = stored_settings(summary).length or 1  # speeds count tokens
    base_batch, base_steps = speeds[base][0], statistics.median(result["steps"] for result in trained[base])
    rows = []
    for ranks, (batch, speed) in speeds.items():
        results = trained.get(ranks, [])
        row = {"ranks": ranks, "global_batch": batch,
               "steps": statistics.median(r["steps"] for r in results) if results else None,
               "seconds": statistics.median(r["seconds"] for r in results) if results else None,
               "predicted_steps": None, "predicted_seconds": None, "curve": curve(results, batch)}
        if batch == base_batch or noise is not None:
            ratio = 1 if batch == base_batch else steps(batch, noise) / steps(base_batch, noise)
            row["predicted_steps"] = base_steps * ratio
            row["predicted_seconds"] = (row["predicted_steps"] * batch * samples_of_one
                                        / predicted_speeds.get(ranks, speed["value"]))
        rows.append(row)
    return {"goal": goal, "noise": noise, "baseline_ranks": base, "rows": rows}


def add_options(run_parser, positive_integer):
    group = run_parser.add_argument_group("the time to a result, with each number of ranks")
    group.add_argument("--to", metavar="GOAL", help="such as accuracy=0.9 (annulus train --until); needs --data")
    group.add_argument("--epochs", type=positive_integer, default=10, help="the most of a training (10)")
    group.add_argument("--seeds", type=positive_integer, default=1, help="trainings with each number of ranks (1)")
    group.add_argument("--train-options", default="", metavar="'OPTIONS'", help="further options of annulus train")


def check_options(options):
    if options.to and not options.data:
        raise argparse.ArgumentTypeError("--to needs --data")
    if options.to and options.proposal:
        raise argparse.ArgumentTypeError("--to does not go with --proposal: give --out")
    if not options.to and (options.train_options or options.seeds > 1):
        raise argparse.ArgumentTypeError("--seeds and --train-options belong to --to")

