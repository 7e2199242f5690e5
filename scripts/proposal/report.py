"""The report of a proposal folder: strong and weak scaling by nodes, and the cost of training to a target."""
from benchmark import number, plural
from scaling.elements import Figure, Heading, Line, Table, Warnings
from scaling.report import (interval_text, ledger_rows, method_section, percent, predicted_interval, samples_text, with_interval)
from scaling.settings import stored_settings

DEFINITIONS = {
    "weak": "Each rank computes the same batch, for any number of {unit}. Efficiency is the speed S(N) on N {unit}, relative to "
            "N times that of a {each}, measured on {base}: E(N) = S(N) / ({count} S({number})).",
    "strong": "All ranks together compute one global batch, divided evenly. Efficiency is the time T per step on {base}, relative "
              "to N {unit}: E(N) = T({number}) / ({count} T(N))."}


def speed_table(summary):
    settings, unit = stored_settings(summary), summary["unit"]
    gpus = ["GPUs"] if "cuda" in summary["device"].lower() else []
    head = [unit, *(["ranks"] if unit == "nodes" else ["nodes"]), *gpus, "batch per rank", "global batch", f"{settings.unit}/s",
            "step, ms", "speed-up", "efficiency"]
    base = summary["steps"][0]
    return Table(head, [[str(s["count"]), str(s["ranks"] if unit == "nodes" else s["nodes"]), *([str(s["ranks"])] if gpus else []),
                         str(s["batch_per_rank"]), str(s["global_batch"]), with_interval(s[settings.speed]),
                         with_interval(s["step_ms"]), f"{s[settings.speed]['median'] / base[settings.speed]['median']:.2f}",
                         percent(s["efficiency"])] for s in summary["steps"]])


def extrapolated_table(summary):
    settings, last = stored_settings(summary), summary["steps"][-1]["count"]
    rows = [[f"{p['count']} (extrapolated)", str(p["ranks"]), str(p["global_batch"]),
             number(p[settings.speed]) + predicted_interval(p, settings.speed, number),
             f"{100 * p['efficiency']:.1f} %" + predicted_interval(p, "efficiency", lambda of: f"{100 * of:.1f}")]
            for p in summary["prediction"].get("predictions", []) if p["count"] > last]
    return [Table([summary["unit"], "ranks", "global batch", f"{settings.unit}/s", "efficiency"], rows)] if rows else []


def cost_section(rows, target, unit, prices):
    def digits(value):
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"

    def text(estimate):
        return "unknown" if estimate is None else digits(estimate["value"]) + interval_text(estimate, digits)
    known = "with the gradient-noise scale of that run" if target.noise else (
        "as many samples as in that run, because its gradient noise is unknown: only true of its global batch of "
        f"{target.global_batch}")
    yield Line(f"To the target ({target.text}), {known}; a run reached it after {number(target.samples)} samples. Training only: "
               "without start-up, evaluations, checkpoints and waiting in the queue.")
    yield Table([unit, "hours", "node hours", "kWh", "cost", "from"],
                [[str(row["count"]), text(row["hours"]), text(row["node_hours"]), text(row["kwh"]), text(row["cost"]),
                  "measured speed" if row["measured"] else "extrapolated speed"] for row in rows])
    if prices.watts_per_node:
        yield Line(f"kWh: of {prices.watts_per_node:g} W per node, as given.")
    elif any(row["kwh"] is None for row in rows):
        yield Line("Some kWh are unknown: give --watts-per-node, such as a node's mean power in the centre's accounting, or a "
                   "watt-meter's --energy-csv.")


def energy_section(summary):
    """What is known of the power of measured steps, in the ledger's parts."""
    known = [s for s in summary["steps"] if s["watts"]]
    yield Heading("Energy of the median step", level=3)
    if not known:
        yield Line("Unknown: no counter could be read (Cray's pm_counters, RAPL, NVML, sacct's ConsumedEnergy), and no watt-meter's "
                   "--energy-csv was given.")
        return
    parts = list(known[0]["ledger_ms"])
    rows = []
    for s in known:
        joules = {part: s["watts"]["median"] * 1e-3 * s["ledger_ms"][part] for part in parts}
        rows.append([str(s["count"]), with_interval(s["watts"]), f"{sum(joules.values()):.3g}",
                     f"{sum(joules.values()) / s['global_batch']:.3g}", *(f"{joules[part]:.3g}" for part in parts)])
    yield Table([summary["unit"], "W", "J", f"J per {stored_settings(summary).samples[:-1]}",
                 *(f"{part.replace('_', ' ')}, J" for part in parts)], rows)
    yield Line(f"Power of all nodes together ({'; '.join(sorted({s['watts']['source'] for s in known}))}), divided among the parts of "
               "a step by their time.")


def unknown_section(summary):
    """What the study cannot know."""
    prediction, settings, unit = summary["prediction"], stored_settings(summary), summary["unit"]
    last = summary["steps"][-1]["count"]
    parts = []
    if "missing" in prediction:
        parts.append(f"Nothing is extrapolated: {prediction['missing']}.")
    else:
        held_out = prediction["interference"]["held_out"]
        if summary["held_out_error"] is not None:
            parts.append(f"The prediction, fitted without {held_out} ranks, is off by {summary['held_out_error']:+.1%} there.")
        else:
            parts.append("No number of ranks was held out, so nothing judges the prediction: measure a third one.")
        link = prediction["link"]
        parts.append(f"The curve ends at {last} {unit}: {prediction['ends']}." if prediction["ends"] else
                     f"Beyond {last} {unit} everything is extrapolated over a link of {link['latency_us']:.3g} us and "
                     f"{link['bandwidth_gbit_s']:.4g} Gbit/s ({link['source']}); the intervals widen with each doubling.")
    repeats = max(len(s["step_ms"]["values"]) for s in summary["steps"])
    parts.append(f"Intervals cover the variation between {plural(repeats, 'repeat')} on the same nodes, not between days, "
                 "placements or other jobs on the network.")
    parts.append("Steps compute " + ("samples of a file in memory" if settings.data else "random samples in memory")
                 + ": reading from a file system, evaluations and checkpoints are not included. Larger batches may need more "
                 "samples to the same loss, or never reach it.")
    yield Heading("What this cannot know", level=3)
    yield Line(" ".join(parts))


def scaling_section(name, summary, figures, target, costs, prices):
    settings, unit = stored_settings(summary), summary["unit"]
    base, each = summary["steps"][0]["count"], summary["unit"][:-1]
    yield Heading(f"{name.capitalize()} scaling: {settings.batch_text}")
    yield Line(DEFINITIONS[name].format(unit=unit, each=each, base=plural(base, each), number=base,
                                            count="N" if base == 1 else f"N/{base}"))
    if summary["warnings"]:
        yield Warnings(summary["warnings"])
    yield speed_table(summary)
    yield from extrapolated_table(summary)
    yield from figures
    yield Heading("Breakdown of the median step", level=3)
    yield Table(*ledger_rows(summary))
    yield from energy_section(summary)
    if target:
        yield Heading("Time, node hours, energy and cost to the target", level=3)
        yield from cost_section(costs, target, unit, prices)
    yield from unknown_section(summary)


def heading(summary):
    settings, machine, facts = stored_settings(summary), summary["machine"], summary["provenance"]
    yield Heading(f"Scaling of {settings.model}", level=1)
    yield Line(f"{samples_text(settings)}; all-reduce {settings.all_reduce}; {plural(settings.threads, 'thread')} per rank"
               + (f"; {' '.join(settings.step_options)}" if settings.step_options else "") + ".")
    yield Line(f"{plural(machine['nodes'], 'node')} with {machine['cores']} cores of {machine['processor']}; {summary['device']}; "
               f"{facts['program'] or summary['version']}; {facts['mpi'] or 'MPI unknown'}; network devices: "
               f"{facts['networks'] or 'none whose speed can be read'}; measured {facts['when']}"
               + (f", {facts['jobs']}" if facts["jobs"] else "") + ".")


def blocks(parts, missing, target, prices):
    """`parts`: for each kind of scaling (name, summary by unit, figures, costs); `missing`: texts."""
    yield from heading(parts[0][1])
    if missing:
        yield Warnings([f"not measured yet, the same command continues: {text}" for text in missing])
    for name, summary, figures, costs in parts:
        yield from scaling_section(name, summary, [Figure(*figure) for figure in figures], target, costs, prices)
    yield from method_section(parts[0][1])
