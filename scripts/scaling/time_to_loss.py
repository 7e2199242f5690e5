"""How much sooner more ranks reach the same loss: larger batches need fewer steps, but not in proportion.

  steps(B) = S_min (1 + noise / B)

for batches of B samples and a gradient-noise scale that `annulus train` measures (McCandlish et al. 2018)."""
import json

from benchmark import give_up
from scaling.settings import stored_settings

WORTHWHILE = 0.05  # share of the time


def read_noise(file):
    """{"scale", "low", "high"} from a run's results.json; an unknown interval is empty."""
    try:
        found = json.loads(file.read_text())["gradient_noise"]
        return {"scale": found["scale"], "low": found.get("low", found["scale"]), "high": found.get("high", found["scale"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        give_up(f"{file} has no gradient noise ({type(error).__name__}: {error}): annulus train measures it in logged steps of "
                "several ranks, or of one with --accumulate or --shards")


def steps(batch, noise):
    """In units of the fewest."""
    return 1 + noise / batch


def speeds_of(summary):
    """ranks -> (global batch, samples/s and its interval): measured, else predicted. `samples` may be tokens."""
    name = stored_settings(summary).speed
    found = {p["ranks"]: (p["global_batch"], {"value": p[name], "low": p[f"{name}_low"], "high": p[f"{name}_high"]})
             for p in summary["prediction"].get("predictions", [])}
    for s in summary["steps"]:
        found[s["ranks"]] = s["global_batch"], {"value": s[name]["median"], "low": s[name]["low"], "high": s[name]["high"]}
    return dict(sorted(found.items()))


def time_to_loss(summary, noise):
    """{"noise", "baseline_ranks", "rows": [{"ranks", "global_batch", "speedup", "low", "high"}], "ranks_worth"}: the speed-up
    is relative to the fewest ranks; beyond `ranks_worth` all others gain less than WORTHWHILE of the time."""
    speeds = speeds_of(summary)
    base = min(speeds)
    base_batch, base_speed = speeds[base]
    rows = []
    for ranks, (batch, speed) in speeds.items():
        def speedup(end, of_noise):
            samples = base_batch * steps(base_batch, of_noise) / (batch * steps(batch, of_noise))  # to the loss
            return samples * speed[end] / base_speed["value"]
        ends = ("value", "value") if ranks == base else ("low", "high")
        rows.append({"ranks": ranks, "global_batch": batch, "speedup": speedup("value", noise["scale"]),
                     "low": speedup(ends[0], noise["low"]), "high": speedup(ends[1], noise["high"])})
    best = max(row["speedup"] for row in rows)
    return {"noise": noise, "baseline_ranks": base, "rows": rows,
            "ranks_worth": min(row["ranks"] for row in rows if row["speedup"] >= (1 - WORTHWHILE) * best)}
