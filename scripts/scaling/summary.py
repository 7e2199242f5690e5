"""Computes study.json from raw/*.json.

A value of several repeats is {"median", "low", "high", "confidence", "values"}: the median, its interval, the probability
that it contains the true median (estimates.py), and every repeat's value.

  settings      common to all measurements (settings.Settings)
  machine       {"processor", "cores"} of a node; "nodes": the maximum used; "hosts": that ran the study
  provenance    {"when", "jobs", "program", "mpi", "networks"}: texts, empty if unknown
  device        the program's description
  version       the program's
  steps         for each number of ranks:
    ranks, nodes, batch_per_rank, global_batch, steps (timed, in all repeats)
    images_per_second, step_ms               values of several repeats; a step's time is that of the slowest rank; of a
                language model tokens_per_second, and batches count windows
    efficiency  {"value", "low", "high", "confidence", "baseline"}: the speed relative to N times the baseline's; the
                interval is a bootstrap's; "baseline" is a description of the baseline
    ledger_ms   part -> milliseconds; the parts add up to the median of step_ms, in the ledger's proportions (the mean over
                ranks, repeats, and typical steps: annulus bench step)
    watts       the mean power of all nodes, as values of several repeats, with "source"; null if unknown (energy.py)
    lateness_ms of each rank: the delay of its gradients after the first rank's, per step; medians of repeats
  all_reduce    for each number of ranks, algorithm and size: ranks, algorithm, bytes, and microseconds, algbw_gb_per_s,
                busbw_gb_per_s, values of several repeats
  prediction    prediction.predict()'s answer: for each number of ranks also SPEED_low, SPEED_high, efficiency_low and
                efficiency_high
  time_to_loss  with --noise: time_to_loss.time_to_loss()'s answer
  time_to_goal  with --to: time_to_goal.time_to_goal()'s answer
  checksum      of weights and optimizer state after the first steps, if `--shards` made it the same with every number of
                ranks; else null
  warnings      texts about doubtful measurements
"""
import itertools
import statistics

from benchmark import give_up, plural
from scaling import energy, noise, provenance
from scaling.estimates import median_interval, ratio_interval
from scaling.settings import load, stored_settings

LEDGER = ["compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "input", "rest"]


def estimate(values):
    interval = median_interval(values)
    return {"median": statistics.median(values), "low": interval.low, "high": interval.high,
            "confidence": interval.confidence, "values": list(values)}


def step_row(measurement):
    """The row of the step with all-reduces; several ranks also have one of the step without (interference.py)."""
    return measurement["result"]["rows"][0]


def repeats_by_ranks(raw):
    steps = [m for m in raw if m["kind"] == "step"]
    return {ranks: list(repeats) for ranks, repeats in itertools.groupby(steps, key=lambda m: m["ranks"])}


def speeds(repeats):
    return [step_row(m)[stored_settings(m).speed] for m in repeats]


def baseline_text(settings, ranks, base_ranks):
    return f"{ranks / base_ranks:g} x {plural(base_ranks, 'rank')} at {settings.batch_text}"


def efficiency_of(repeats, base, settings):
    ranks, base_ranks = repeats[0]["ranks"], base[0]["ranks"]
    fast, slow = speeds(repeats), speeds(base)
    share = base_ranks / ranks
    found = {"value": statistics.median(fast) / statistics.median(slow) * share,
             "baseline": baseline_text(settings, ranks, base_ranks)}
    if repeats is base:  # by definition
        return {**found, "low": 1.0, "high": 1.0, "confidence": 1.0}
    interval = ratio_interval(fast, slow)
    return {**found, "low": interval.low * share, "high": interval.high * share, "confidence": interval.confidence}


def shares_and_delays(repeats):
    """Yields each repeat's parts of a step as shares, and each rank's delay per step in seconds."""
    for m in repeats:
        ledger = step_row(m)["ledger"]
        whole, steps = sum(ledger[part] for part in LEDGER), max(ledger["steps"], 1)
        yield ({part: ledger[part] / whole for part in LEDGER},
               [behind / steps for behind in ledger["ranks"].get("behind_first", [])])


def summarize_steps(repeats, base, settings, meter):
    ranks, rows = repeats[0]["ranks"], [step_row(m) for m in repeats]
    batch = rows[0]["batch"]
    shares, behind = zip(*shares_and_delays(repeats))
    step_ms = estimate([1e3 * row["median_seconds"] for row in rows])
    return {"ranks": ranks, "nodes": repeats[0]["nodes"], "batch_per_rank": batch, "global_batch": batch * ranks,
            "steps": sum(row["steps"] for row in rows), settings.speed: estimate(speeds(repeats)),
            "step_ms": step_ms,
            "efficiency": efficiency_of(repeats, base, settings),
            "ledger_ms": {part: step_ms["median"] * statistics.mean(of[part] for of in shares) for part in LEDGER},
            "watts": energy.power_of(repeats, meter),
            "lateness_ms": [1e3 * statistics.median(of_rank) for of_rank in zip(*behind)]}


def summarize_all_reduces(raw):
    found = {}
    for m in raw:
        if m["kind"] == "all-reduce":
            for row in m["result"]["rows"]:
                found.setdefault((row["ranks"], row["algorithm"], row["bytes"]), []).append(row)
    for (ranks, algorithm, size), rows in found.items():
        yield {"ranks": ranks, "algorithm": algorithm, "bytes": size,
               "microseconds": estimate([1e6 * row["median_seconds"] for row in rows]),
               "algbw_gb_per_s": estimate([row["algbw_bytes_per_second"] / 1e9 for row in rows]),
               "busbw_gb_per_s": estimate([row["busbw_bytes_per_second"] / 1e9 for row in rows])}


def warnings(raw, by_ranks):
    yield from noise.warnings(raw, {ranks: [step_row(m)["median_seconds"] for m in repeats]
                                    for ranks, repeats in by_ranks.items()})
    counts = {ranks: len(repeats) for ranks, repeats in by_ranks.items()}
    if min(counts.values()) < max(counts.values()):
        yield ("measurements are missing: repeats of a step are "
               + ", ".join(f"{count} with {plural(ranks, 'rank')}" for ranks, count in counts.items()))
    if min(counts.values()) == 1:
        yield "with a single repeat the variation between repeats is unknown"
    if min(counts) > 1:
        yield f"no single rank was measured: efficiency is relative to {min(counts)} ranks, which already communicate"


def common_checksum(raw):
    """The checksum of all steps' measurements; None if it is missing or differs."""
    checksums = {step_row(m).get("checksum") for m in raw if m["kind"] == "step"}
    return checksums.pop() if len(checksums) == 1 else None


def summarize(out, meter=None):
    """Summarizes the measurements in a folder, without a prediction. `meter`: an energy.Meter, or None."""
    raw = load(out)
    by_ranks = repeats_by_ranks(raw)
    if not by_ranks:
        give_up(f"{out} has no measurement of a step")
    settings = stored_settings(raw[0])
    base, result = by_ranks[min(by_ranks)], next(iter(by_ranks.values()))[0]["result"]
    return {"settings": raw[0]["settings"],
            "machine": {**raw[0]["machine"], "nodes": max(m["nodes"] for m in raw),
                        "hosts": sorted({m["host"] for m in raw})},
            "provenance": provenance.summarize(raw),
            "device": result["device"], "version": result["version"],
            "steps": [summarize_steps(repeats, base, settings, meter) for repeats in by_ranks.values()],
            "all_reduce": list(summarize_all_reduces(raw)), "checksum": common_checksum(raw), "warnings": list(warnings(raw, by_ranks))}
