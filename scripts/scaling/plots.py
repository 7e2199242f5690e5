"""The figures of a study, as SVG, PDF and PNG."""
from benchmark import drawing, size_axis
from scaling.settings import stored_settings

OURS, PREDICTED = "#08306b", "#b30000"
PARTS = {"compute": "#9ecae1", "exposed_communication": "#d95f0e", "waiting_for_slower_ranks": "#fec44f",
         "optimizer": "#74a9a0", "input": "#8c6d31", "rest": "#bdbdbd"}


def rank_axis(axes, counts):
    from matplotlib.ticker import NullLocator
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, list(map(str, counts)), rotation=90 if len(counts) > 12 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.3)


def label_decades(axes):
    """A logarithmic y axis that has labels even within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def error_bars(axes, counts, middles, intervals, **style):
    """Error bars of values with "low" and "high"."""
    reach = [[max(0, middle - i["low"]) for middle, i in zip(middles, intervals)],
             [max(0, i["high"] - middle) for middle, i in zip(middles, intervals)]]
    axes.errorbar(counts, middles, yerr=reach, **{"color": OURS, "marker": "o", "capsize": 4, **style})


def predicted_lines(axes, summary, name, scale=1):
    """Plots the prediction up to the largest measured number of ranks, and the extrapolation beyond it with its interval."""
    found = summary["prediction"]["predictions"]
    last = summary["steps"][-1]["ranks"]
    beyond = [p for p in found if p["ranks"] >= last]
    for part, style, label in (([p for p in found if p["ranks"] <= last], "-", "predicted"),
                               (beyond, ":", "predicted, extrapolated")):
        if len(part) > 1:
            axes.plot([p["ranks"] for p in part], [scale * p[name] for p in part], color=PREDICTED, linestyle=style,
                      label=label)
    if len(beyond) > 1:
        low, high = ([scale * p[f"{name}_{end}"] for p in beyond] for end in ("low", "high"))
        axes.fill_between([p["ranks"] for p in beyond], low, high, color=PREDICTED, alpha=0.15, linewidth=0, label="its interval")


def speed_title(summary):
    return f"{stored_settings(summary).unit.capitalize()}/s"


def baseline(summary):
    return summary["steps"][0]["efficiency"]["baseline"].removeprefix("1 x ")


def speed_panel(axes, summary, counts):
    steps, base = summary["steps"], summary["steps"][0]
    settings = stored_settings(summary)
    error_bars(axes, [s["ranks"] for s in steps], [s[settings.speed]["median"] for s in steps],
               [s[settings.speed] for s in steps], label="measured")
    axes.plot(counts, [base[settings.speed]["median"] * n / base["ranks"] for n in counts], color="black",
              linestyle="--", linewidth=1, label=f"ideal: N times {baseline(summary)}")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    axes.set_ylabel(f"{settings.unit}/s")
    rank_axis(axes, counts)


def efficiency_panel(axes, summary, counts):
    steps = summary["steps"]
    error_bars(axes, [s["ranks"] for s in steps], [100 * s["efficiency"]["value"] for s in steps],
               [{end: 100 * s["efficiency"][end] for end in ("low", "high")} for s in steps], label="measured")
    axes.axhline(100, color="black", linestyle="--", linewidth=1)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_ylabel(f"%  of N times {baseline(summary)}")
    rank_axis(axes, counts)


def speed_figure(figure, summary):
    counts = [s["ranks"] for s in summary["steps"]]
    for axes, panel, title in zip(figure.subplots(1, 2), (speed_panel, efficiency_panel),
                                 (speed_title(summary), "Efficiency")):
        panel(axes, summary, counts)
        axes.set_title(title)
        axes.legend(frameon=False)


def prediction_figure(figure, summary):
    counts = sorted({s["ranks"] for s in summary["steps"]} | {p["ranks"] for p in summary["prediction"]["predictions"]})
    left, right = figure.subplots(1, 2)
    speed_panel(left, summary, counts)
    speed = stored_settings(summary).speed
    predicted_lines(left, summary, speed)
    efficiency_panel(right, summary, counts)
    predicted_lines(right, summary, "efficiency", 100)
    right.set_ylim(0, 1.05 * max([100, *(100 * p["efficiency_high"] for p in summary["prediction"]["predictions"])]))
    for axes, title in ((left, f"{speed_title(summary)}, measured and predicted"),
                        (right, "Efficiency, each relative to its baseline")):
        if not summary["prediction"]["ends"]:
            axes.axvspan(summary["steps"][-1]["ranks"], counts[-1], color="#f0f0f0", zorder=0)
        axes.set_title(title)
        axes.legend(frameon=False)


def ledger_figure(figure, summary):
    steps = summary["steps"]
    left, right = figure.subplots(1, 2)
    places, floor = range(len(steps)), [0.0] * len(steps)
    for part, colour in PARTS.items():
        heights = [s["ledger_ms"][part] for s in steps]
        left.bar(places, heights, 0.6, floor, color=colour, label=part.replace("_", " "))
        floor = [below + height for below, height in zip(floor, heights)]
    left.set_title("Breakdown of step time")
    left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncol=3)
    shares = [100 * s["ledger_ms"]["exposed_communication"] / sum(s["ledger_ms"].values()) for s in steps]
    exposed = [s["ledger_ms"]["exposed_communication"] for s in steps]
    bars = right.bar(places, exposed, 0.6, color=PARTS["exposed_communication"])
    right.bar_label(bars, [f"{share:.1f} %" for share in shares])
    right.set_title("Exposed communication and its share of the step")
    for axes in (left, right):
        axes.set_xticks(places, [f"{s['ranks']}\n({s['batch_per_rank']} per rank)" for s in steps])
        axes.set_ylabel("ms a step")


def lateness_figure(figure, summary):
    axes = figure.subplots()
    for step in summary["steps"]:
        if len(step["lateness_ms"]) > 1:
            axes.plot(step["lateness_ms"], marker="o", linestyle="-", linewidth=0.7, label=f"{step['ranks']} ranks")
    axes.set_title("Lateness: the delay of a rank's last gradients after the first rank's")
    axes.set_xlabel("rank")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("ms a step")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def all_reduce_figure(figure, summary):
    sums = summary["all_reduce"]
    sizes = sorted({row["bytes"] for row in sums})
    lines = list(dict.fromkeys((row["ranks"], row["algorithm"]) for row in sums))
    styles = dict(zip(dict.fromkeys(row["algorithm"] for row in sums), ["-", "--", ":"]))
    colours = {ranks: f"C{place % 10}" for place, ranks in enumerate(dict.fromkeys(row["ranks"] for row in sums))}
    for axes, name in zip(figure.subplots(1, 2), ("algbw", "busbw")):
        for ranks, algorithm in lines:
            rows = [row for row in sums if (row["ranks"], row["algorithm"]) == (ranks, algorithm)]
            rates = [row[f"{name}_gb_per_s"] for row in rows]
            error_bars(axes, [row["bytes"] for row in rows], [rate["median"] for rate in rates], rates,
                       color=colours[ranks], linestyle=styles[algorithm], label=f"{ranks} ranks, {algorithm}")
        axes.set_ylabel("GB/s  (bytes / time)" if name == "algbw" else "GB/s  (algbw × 2(N−1)/N)")
        label_decades(axes)
        axes.set_title(f"All-reduce: {name} by size")
        size_axis(axes, sizes)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))


def figures(summary):
    """Yields name, title and function of each figure that has data."""
    several = any(len(step["lateness_ms"]) > 1 for step in summary["steps"])
    yield "speed", f"{speed_title(summary)} and efficiency", speed_figure
    yield "ledger", "Breakdown of step time", ledger_figure
    if several:
        yield "lateness", "Lateness of ranks", lateness_figure
    if summary["all_reduce"]:
        yield "all-reduce", "Bandwidth of all-reduces", all_reduce_figure
    if summary["prediction"].get("predictions"):
        yield "predicted", "Measured and predicted", prediction_figure


def draw(out, summary):
    """Writes NAME.svg, NAME.pdf and NAME.png of each figure to `out`. Returns the titles by name. Raises ImportError."""
    pyplot = drawing()
    titles = {}
    for name, title, fill in figures(summary):
        figure = pyplot.figure(figsize=(13, 5) if name != "lateness" else (9, 4.5))
        fill(figure, summary)
        figure.tight_layout()
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        figure.savefig(out / f"{name}.pdf", metadata={"CreationDate": None})
        figure.savefig(out / f"{name}.png", dpi=110)
        pyplot.close(figure)
        titles[name] = title
    return titles
