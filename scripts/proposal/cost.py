"""What training to a target takes with each number of nodes: time, node hours, energy, money."""
import dataclasses
import json

from benchmark import give_up
from scaling.settings import stored_settings

SECONDS = 3600


@dataclasses.dataclass(frozen=True)
class Target:
    """Training that reached the target once."""
    text: str             # "accuracy=0.9"
    samples: float        # until then: images, or windows of text
    global_batch: int
    noise: float          # gradient-noise scale, 0 if unknown

    def samples_with(self, batch):
        """The number of steps is proportional to 1 + noise / batch (McCandlish et al. 2018). If the noise is unknown, the same
        number of samples."""
        if not self.noise:
            return self.samples
        return self.samples * (batch + self.noise) / (self.global_batch + self.noise)


def read_target(file):
    """The Target of a run's results.json: its last evaluation, at which it ended."""
    try:
        found = json.loads(file.read_text())
        last = found["evaluations"][-1]
        return Target(found.get("ended_by") or f"the last evaluation, after step {last['step']}", last["step"] * found["global_batch"],
                      found["global_batch"], found.get("gradient_noise", {}).get("scale", 0))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        give_up(f"--target {file}: no results.json of a run with evaluations ({type(error).__name__}: {error})")


@dataclasses.dataclass(frozen=True)
class Prices:
    """None: unknown."""
    per_node_hour: float
    per_kwh: float
    watts_per_node: float


def rows(summary, target, prices):
    """For each number of units, measured or predicted: {"count", "nodes", "measured", "hours", "node_hours", "kwh", "cost"},
    each a {"value", "low", "high"}; kwh and cost are None if unknown. `summary`: nodes.by_unit()'s."""
    settings = stored_settings(summary)
    full = max(-(-s["ranks"] // s["nodes"]) for s in summary["steps"])
    measured = {s["count"]: (s, {"value": s[settings.speed]["median"], "low": s[settings.speed]["low"],
                                 "high": s[settings.speed]["high"]}) for s in summary["steps"]}
    points = {p["count"]: (p, {"value": p[settings.speed], **{end: p[f"{settings.speed}_{end}"] for end in ("low", "high")}})
              for p in summary["prediction"].get("predictions", [])} | measured
    for count, (row, speed) in sorted(points.items()):
        items = target.samples_with(row["global_batch"]) * (settings.length or 1)
        hours = {"value": items / speed["value"] / SECONDS, "low": items / speed["high"] / SECONDS,
                 "high": items / speed["low"] / SECONDS}
        nodes = row.get("nodes", 1) if count in measured else -(-row["ranks"] // full)
        node_hours = scaled(hours, nodes)
        watts = watts_of(row, nodes, count in measured, summary, prices)
        kwh = scaled(hours, watts / 1000) if watts else None
        yield {"count": count, "nodes": nodes, "measured": count in measured, "hours": hours, "node_hours": node_hours, "kwh": kwh,
               "cost": total([scaled(node_hours, prices.per_node_hour), kwh and scaled(kwh, prices.per_kwh)])}


def watts_of(row, nodes, measured, summary, prices):
    """The power of all nodes; of extrapolated ones only if the power of full nodes was measured. None if it is unknown."""
    if prices.watts_per_node:
        return nodes * prices.watts_per_node
    last = summary["steps"][-1]
    if measured:
        return row["watts"] and row["watts"]["median"]
    return nodes / last["nodes"] * last["watts"]["median"] if summary["unit"] == "nodes" and last["watts"] else None


def scaled(estimate, factor):
    """None if the factor is unknown."""
    return {end: value * factor for end, value in estimate.items()} if factor else None


def total(estimates):
    known = [estimate for estimate in estimates if estimate]
    return {end: sum(estimate[end] for estimate in known) for end in known[0]} if known else None
