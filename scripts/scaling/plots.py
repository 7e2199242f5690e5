"""The figures of a study, as SVG, PDF and PNG, with captions."""
import functools
import importlib.util
import sys

from benchmark import format_size, give_up, plural, say, size_axis
from scaling import figure_style
from scaling.figure_style import COLUMN, PAGE, count_axis, legend_below, logarithmic_axis
from scaling.settings import stored_settings

MISSING = f"{sys.executable} has no matplotlib: install Debian's python3-matplotlib, or pip install matplotlib"
OURS, PREDICTED, BEYOND = "#08306b", "#b30000", "#f0f0f0"
PARTS = {"compute": "#9ecae1", "exposed_communication": "#d95f0e", "waiting_for_slower_ranks": "#fec44f",
         "optimizer": "#74a9a0", "input": "#8c6d31", "rest": "#bdbdbd"}


def name_what_is_missing():
    """Says before anything is measured if there will be no figures."""
    if not importlib.util.find_spec("matplotlib"):
        say(f"no figures, because {MISSING}; `study report` adds them later")


def expect_matplotlib():
    if not importlib.util.find_spec("matplotlib"):
        give_up(f"a proposal needs figures, and {MISSING}")


def count_of(row):
    """A step's or a prediction's place on the x axis: nodes if the summary is by nodes, else ranks."""
    return row.get("count", row["ranks"])


def unit(summary):
    return summary.get("unit", "ranks")


def points(axes, counts, estimates, scale=1, **style):
    """Medians with their intervals. No line joins them: what is between was not measured. Returns all values."""
    middles = [scale * e.get("median", e.get("value")) for e in estimates]
    reach = [[max(0, middle - scale * e["low"]) for middle, e in zip(middles, estimates)],
             [max(0, scale * e["high"] - middle) for middle, e in zip(middles, estimates)]]
    axes.errorbar(counts, middles, yerr=reach, **{"color": OURS, "marker": "o", "linestyle": "none", **style})
    return [*middles, *(scale * e[end] for e in estimates for end in ("low", "high"))]


def predicted_lines(axes, summary, name, scale=1):
    """Plots the prediction up to the largest measured number of ranks, and the extrapolation beyond it with its interval."""
    found = summary["prediction"]["predictions"]
    last = count_of(summary["steps"][-1])
    beyond = [p for p in found if count_of(p) >= last]
    for part, style, label in (([p for p in found if count_of(p) <= last], "-", "predicted"),
                               (beyond, ":", "extrapolated")):
        if len(part) > 1:
            axes.plot([count_of(p) for p in part], [scale * p[name] for p in part], color=PREDICTED, linestyle=style,
                      label=label)
    if len(beyond) > 1:
        low, high = ([scale * p[f"{name}_{end}"] for p in beyond] for end in ("low", "high"))
        axes.fill_between([count_of(p) for p in beyond], low, high, color=PREDICTED, alpha=0.15, linewidth=0,
                          label="interval")


def baseline(summary):
    return summary["steps"][0]["efficiency"]["baseline"].removeprefix("1 x ")


def speed_panel(axes, summary, counts):
    steps, base = summary["steps"], summary["steps"][0]
    settings = stored_settings(summary)
    found = points(axes, [count_of(s) for s in steps], [s[settings.speed] for s in steps], label="measured")
    ideal = [base[settings.speed]["median"] * n / count_of(base) for n in counts]
    axes.plot(counts, ideal, color="black", linestyle="--", linewidth=0.8, label="ideal")
    logarithmic_axis(axes, [*found, *ideal])
    axes.set_ylabel(f"{settings.unit}/s")
    count_axis(axes, counts, unit(summary))


def efficiency_panel(axes, summary, counts):
    steps = summary["steps"]
    found = points(axes, [count_of(s) for s in steps], [s["efficiency"] for s in steps], 100, label="measured")
    axes.axhline(100, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(0, max(105, 1.05 * max(found)))
    axes.set_ylabel("efficiency, %")
    count_axis(axes, counts, unit(summary))


def speed_figure(summary, figure):
    counts = [count_of(s) for s in summary["steps"]]
    for axes, panel in zip(figure.subplots(1, 2), (speed_panel, efficiency_panel)):
        panel(axes, summary, counts)
        legend_below(axes)


def prediction_figure(summary, figure):
    counts = sorted({count_of(row) for row in summary["steps"] + summary["prediction"]["predictions"]})
    left, right = figure.subplots(1, 2)
    speed_panel(left, summary, counts)
    predicted_lines(left, summary, stored_settings(summary).speed)
    efficiency_panel(right, summary, counts)
    predicted_lines(right, summary, "efficiency", 100)
    for axes in (left, right):
        if not summary["prediction"]["ends"]:
            axes.axvspan(count_of(summary["steps"][-1]), counts[-1], color=BEYOND, zorder=0)
        legend_below(axes)


def ledger_figure(summary, figure):
    steps = summary["steps"]
    left, right = figure.subplots(1, 2)
    places, floor = range(len(steps)), [0.0] * len(steps)
    for part, colour in PARTS.items():
        heights = [s["ledger_ms"][part] for s in steps]
        left.bar(places, heights, 0.6, floor, color=colour, label=part.replace("_", " "))
        floor = [below + height for below, height in zip(floor, heights)]
    legend_below(left)
    exposed = [s["ledger_ms"]["exposed_communication"] for s in steps]
    bars = right.bar(places, exposed, 0.6, color=PARTS["exposed_communication"])
    right.bar_label(bars, [f"{100 * ms / sum(s['ledger_ms'].values()):.1f} %" for ms, s in zip(exposed, steps)], fontsize=7)
    right.margins(y=0.15)
    right.set_ylabel("exposed, ms per step")
    left.set_ylabel("ms per step")
    for axes in (left, right):
        axes.set_xticks(places, [str(count_of(s)) for s in steps])
        axes.set_xlabel(unit(summary))


def lateness_figure(summary, figure):
    axes = figure.subplots()
    for step, marker in zip((s for s in summary["steps"] if len(s["lateness_ms"]) > 1), "os^vDP*X" * 8):
        axes.plot(step["lateness_ms"], marker=marker, linestyle="none", label=f"{step['ranks']} ranks")
    axes.set_xlabel("rank")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("ms per step")
    axes.set_ylim(bottom=0)
    legend_below(axes, 3)


def all_reduce_figure(summary, figure):
    """A colour for each algorithm, a marker for each number of ranks."""
    sums = summary["all_reduce"]
    sizes = sorted({row["bytes"] for row in sums})
    lines = list(dict.fromkeys((row["ranks"], row["algorithm"]) for row in sums))
    colours = {name: f"C{place}" for place, name in enumerate(dict.fromkeys(row["algorithm"] for row in sums))}
    markers = dict(zip(dict.fromkeys(row["ranks"] for row in sums), "os^vDP*X" * 8))
    for axes, name in zip(figure.subplots(1, 2), ("algbw", "busbw")):
        values = []
        for ranks, algorithm in lines:
            rows = [row for row in sums if (row["ranks"], row["algorithm"]) == (ranks, algorithm)]
            values += points(axes, [row["bytes"] for row in rows], [row[f"{name}_gb_per_s"] for row in rows],
                             color=colours[algorithm], linestyle="-", linewidth=0.6, marker=markers[ranks],
                             label=f"{algorithm}, {ranks} ranks")
        axes.set_ylabel(f"{name}, GB/s")
        logarithmic_axis(axes, values)
        size_axis(axes, sizes)
        axes.set_xlabel("size")
        if len(sizes) <= 6:
            axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=0, ha="center")
        legend_below(axes)


def figures(summary):
    """Yields (name, width, height, caption, function) of each figure that has data."""
    settings = stored_settings(summary)
    what = (f"{settings.model}, {settings.scaling} scaling with {settings.batch_text}, on "
            f"{', '.join(str(count_of(s)) for s in summary['steps'])} {unit(summary)}")
    repeats = max(len(s["step_ms"]["values"]) for s in summary["steps"])
    measured = (f"Points are medians of {plural(repeats, 'repeat')} with their intervals. Measured "
                f"{summary['provenance']['when']} on {summary['machine']['processor']} with "
                f"{summary['provenance']['program'] or 'annulus ' + summary['version']}.")
    efficiency = f"efficiency, the speed divided by N times that of {baseline(summary)}"

    def figure(name, width, height, caption, function):
        return name, width, height, f"{caption} {measured}", functools.partial(function, summary)

    yield figure("speed", PAGE, 2.6, f"Training speed and {efficiency}, of {what}.", speed_figure)
    yield figure("ledger", PAGE, 2.9, f"Breakdown of the median step, and exposed communication with its share of the step, of "
                 f"{what}.", ledger_figure)
    if any(len(step["lateness_ms"]) > 1 for step in summary["steps"]):
        yield figure("lateness", COLUMN, 2.4, "Lateness: the delay of a rank's last gradients after the first rank's, of "
                     f"{what}.", lateness_figure)
    if summary["all_reduce"]:
        lines = len({(row["ranks"], row["algorithm"]) for row in summary["all_reduce"]})
        yield figure("all-reduce", PAGE, 2.9 + 0.08 * lines, "Bandwidth of all-reduces by size: algbw is bytes / time, busbw is "
                     "algbw times 2(N - 1)/N.", all_reduce_figure)
    if summary["prediction"].get("predictions"):
        end = "" if summary["prediction"]["ends"] else " The shaded part and its interval are extrapolated, not measured."
        yield figure("predicted", PAGE, 2.8, f"Measured and predicted training speed and {efficiency}, of {what}.{end}",
                     prediction_figure)


def draw(out, summary):
    """Writes the figures to `out`. Returns the captions by name. Raises ImportError."""
    return figure_style.draw(out, figures(summary))
