"""Strategies on the same work: how long training takes to the same result, with each number of ranks.

Each strategy trains with each of some seeds, until an evaluation reaches a goal. In rounds, one for each seed, so that a
drift of the machine affects all. Times are those of training, without start-up and evaluations.

DIR/trainings has a file for each training, and DIR/strategies.json a row for each strategy and number of ranks:
  ranks, strategy (the words of --strategy), speed (samples/s or tokens/s), unit
  seconds       each training's time to the goal; null if it was not reached
  epochs        that were begun
  scores        the last evaluations' values of the goal's measure
  staleness     mean number of updates between a gradient's weights and its use; null if weights are a rank's own
Speeds, epochs, scores and staleness are medians over the trainings."""
import json
import math
import pathlib
import re
import shlex
import statistics
import tempfile
import time

from benchmark import give_up, number, plural, run, say, table, write
from scaling import noise, provenance, status
from scaling.estimates import median_interval, ratio_interval
from scaling.runner import Launcher
from scaling.settings import expect_equal, hash_of


def file_of(out, strategy, ranks, seed):
    return out / "trainings" / f"{re.sub('[^A-Za-z0-9.]+', '-', strategy)}-{ranks}-ranks-{seed}.json"


def settings_of(options, launcher):
    return {"model": options.model, "data": str(options.data.resolve()), "global_batch": options.global_batch,
            "until": options.until, "epochs": options.epochs, "threads": launcher.threads,
            "train_options": options.further, "program": hash_of(options.program)}


def train(strategy, ranks, seed, launcher, options):
    """Returns results.json and None, or None and the reason of the failure. On several nodes the folder is shared."""
    with tempfile.TemporaryDirectory(dir=options.out, prefix="run-") as folder:
        arguments = ["train", "--data", options.data, "--model", options.model, "--global-batch", options.global_batch,
                     "--epochs", options.epochs, "--until", options.until, "--threads", launcher.threads, "--seed", seed,
                     "--metrics", "none", "--out", pathlib.Path(folder) / "run", "--strategy", *shlex.split(strategy),
                     *options.further]
        _, failure = run([*launcher.start(ranks), options.program, *arguments], options.limit,
                         {"OMP_NUM_THREADS": str(launcher.threads)})
        return (None, failure) if failure else (json.loads((pathlib.Path(folder) / "run/results.json").read_text()), None)


def row_of(results, strategy, ranks, measure):
    unit = next(unit for unit in ("images", "tokens") if f"train_{unit}_per_second" in results[0])
    staleness = [r["ledger"]["staleness"]["mean"] for r in results if "staleness" in r["ledger"]]
    return {"ranks": ranks, "strategy": strategy, "unit": unit,
            "speed": statistics.median([r[f"train_{unit}_per_second"] for r in results]),
            "seconds": [sum(e["seconds"] for e in r["epochs"]) if r.get("ended_by", "").startswith("--until") else None for r in results],
            "epochs": statistics.median([len(r["epochs"]) for r in results]),
            "scores": statistics.median([r["evaluations"][-1][f"test_{measure}"] for r in results]),
            "staleness": statistics.median(staleness) if staleness else None}


def times(row):
    return [math.inf if seconds is None else seconds for seconds in row["seconds"]]


def time_text(row, epochs):
    median, interval = statistics.median(times(row)), median_interval(times(row))
    if math.isinf(median):
        return f"not in {plural(epochs, 'epoch')}"
    if len(row["seconds"]) == 1:
        return f"{number(median)} s"
    return f"{number(median)} s ({number(interval.low)} to {'-' if math.isinf(interval.high) else number(interval.high)})"


def speed_up_text(row, base):
    """How much sooner than the first strategy with the same number of ranks."""
    if row is base or any(map(math.isinf, times(row) + times(base))):
        return "1" if row is base else "-"
    ratio = statistics.median(times(base)) / statistics.median(times(row))
    if len(row["seconds"]) == 1:
        return f"{ratio:.2f}"
    interval = ratio_interval(times(base), times(row))
    return f"{ratio:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def report(rows, settings):
    base = {row["ranks"]: row for row in reversed(rows)}
    unit = rows[0]["unit"]
    lines = [[str(row["ranks"]), f"`{row['strategy']}`", number(row["speed"]), time_text(row, settings["epochs"]),
              speed_up_text(row, base[row["ranks"]]), f"{row['epochs']:g}", f"{row['scores']:.4g}",
              "-" if row["staleness"] is None else f"{row['staleness']:.2f}"] for row in rows]
    trainings = max(len(row["seconds"]) for row in rows)
    return (f"# Strategies: {settings['model']} until {settings['until']}\n\nGlobal batch {settings['global_batch']}, "
            f"{plural(settings['threads'], 'thread')} a rank, medians of {plural(trainings, 'training')}, each with a seed of "
            f"its own{', and the intervals of the medians' if trainings > 1 else ''}.\n\n"
            + table(["ranks", "strategy", f"{unit}/s", f"time to {settings['until']}", "times as fast as the first",
                     "epochs", settings["until"].split("=")[0], "staleness"], lines) + "\n")


def read(file, settings):
    try:
        found = json.loads(file.read_text())
        stored, results = found["settings"], found["results"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        give_up(f"{file} cannot be read ({type(error).__name__}: {error}): delete it, and the same command repeats the training")
    expect_equal(file, stored, settings)
    return results


def study_strategies(options):
    """Trains what is missing, and writes the reports. Returns whether everything is there."""
    launcher = Launcher(options)
    settings = settings_of(options, launcher)
    (options.out / "trainings").mkdir(parents=True, exist_ok=True)
    planned = [(strategy, ranks, seed) for seed in range(1, options.repeat + 1) for ranks in options.ranks
               for strategy in options.strategies]
    if not all(file_of(options.out, *training).exists() for training in planned):
        noise.expect_quiet(options.even_if_busy or provenance.job())
    found, failed = {}, set()
    for count, (strategy, ranks, seed) in enumerate(planned, 1):
        file = file_of(options.out, strategy, ranks, seed)
        if not file.exists() and (strategy, ranks) not in failed:
            what = f"{count} of {len(planned)}: {strategy}, {plural(ranks, 'rank')}, seed {seed}: "
            status.show(f"study: {what}training")
            begin = time.monotonic()
            try:
                results, failure = train(strategy, ranks, seed, launcher, options)
            finally:
                status.show("")
            say(what + (f"FAILED, its other seeds are skipped: {failure}" if failure else f"{time.monotonic() - begin:.1f} s"))
            if failure:
                failed.add((strategy, ranks))
                continue
            write(file, json.dumps({"settings": settings, "results": results}, indent=1) + "\n")
        if file.exists():
            found.setdefault((ranks, strategy), []).append(read(file, settings))
    if not found:
        give_up("no training succeeded")
    measure = options.until.split("=")[0]
    rows = [row_of(found[ranks, strategy], strategy, ranks, measure) for ranks in options.ranks
            for strategy in options.strategies if (ranks, strategy) in found]
    write(options.out / "strategies.json", json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
    write(options.out / "strategies.md", text := report(rows, settings))
    print(text)
    return not failed
