"""A study's summary by nodes, the unit of applications for computing time."""
import copy

from scaling.estimates import ratio_interval
from scaling.settings import stored_settings


def full_node(summary):
    """The most ranks on a node."""
    return max(-(-s["ranks"] // s["nodes"]) for s in summary["steps"])


def unit_of(summary):
    """"nodes" if full ones were measured, several numbers of them; else "ranks"."""
    full = full_node(summary)
    return "nodes" if len({s["nodes"] for s in summary["steps"] if s["ranks"] == s["nodes"] * full}) > 1 else "ranks"


def efficiency(step, base, settings, unit):
    """Speed of N units, relative to N times a unit's of the baseline."""
    share = base["count"] / step["count"]
    fast, slow = step[settings.speed], base[settings.speed]
    found = {"value": fast["median"] / slow["median"] * share,
             "baseline": f"1 x {base['count']} {unit[:-1] if base['count'] == 1 else unit} at {settings.batch_text}"}
    if step is base:
        return {**found, "low": 1.0, "high": 1.0, "confidence": 1.0}
    interval = ratio_interval(fast["values"], slow["values"])
    return {**found, "low": interval.low * share, "high": interval.high * share, "confidence": interval.confidence}


def by_unit(summary):
    """A copy with "unit", whose steps and predictions have a "count" of units, and an efficiency relative to the fewest; with
    nodes only those on full ones."""
    found, settings = copy.deepcopy(summary), stored_settings(summary)
    unit = found["unit"] = unit_of(summary)
    full = full_node(summary) if unit == "nodes" else 1
    found["steps"] = [s for s in found["steps"] if s["ranks"] % full == 0]
    for row in found["steps"]:
        row["count"] = row["ranks"] // full
    base = found["steps"][0]
    for row in found["steps"]:
        row["efficiency"] = efficiency(row, base, settings, unit)
    if "predictions" in found["prediction"]:
        rows = [p for p in found["prediction"]["predictions"] if p["ranks"] % full == 0]
        alone = base[settings.speed]["median"] / base["count"]
        for row in rows:
            row["count"] = row["ranks"] // full
            for end in ("", "_low", "_high"):  # by the same definition as measured ones
                row[f"efficiency{end}"] = min(1.0, row[f"{settings.speed}{end}"] / (row["count"] * alone))
        found["prediction"]["predictions"] = rows
    return found
