"""How figures look in a paper: a column or two wide, text of at least 7 pt in TrueType, several labelled ticks, and a caption
in a file beside the figure instead of a title in it."""
import math

from benchmark import drawing, write

COLUMN, PAGE = 3.3, 7.0  # widths in inches
STYLE = {"pdf.fonttype": 42, "ps.fonttype": 42, "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
         "legend.fontsize": 7, "legend.frameon": False, "axes.linewidth": 0.6, "lines.linewidth": 1, "lines.markersize": 3.5,
         "errorbar.capsize": 2, "axes.grid": True, "grid.alpha": 0.3, "grid.linewidth": 0.5, "axes.axisbelow": True}
SUBDIVISIONS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
FEWEST_TICKS, MOST_TICKS = 4, 8


def number_text(value):
    """A tick's label: "0.25", "1,500", "20k", "3M"."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / min(unit, 1e3 if name == 'k' else unit):,.4g}{name}"
    return f"{value:,.4g}" if value < 1e3 else f"{value:,.0f}"


def logarithmic_ticks(low, high):
    """Round values, at least FEWEST_TICKS, that enclose a range of positive numbers."""
    for parts in SUBDIVISIONS:
        values = [part * 10.0**power for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
                  for part in parts]
        first = max(place for place, value in enumerate(values) if value <= low * (1 + 1e-9))
        last = min((place for place, value in enumerate(values) if value >= high * (1 - 1e-9)), default=len(values) - 1)
        if last - first + 1 >= FEWEST_TICKS:
            chosen = values[first:last + 1]
            return chosen[::math.ceil(len(chosen) / MOST_TICKS)]
    step = 10.0**math.floor(math.log10(max(high - low, low / 5)))
    middle = round((low + high) / 2 / step)
    return [step * (middle + place) for place in (-2, -1, 0, 1, 2) if middle + place > 0]


def logarithmic_axis(axes, values):
    """The y axis."""
    from matplotlib.ticker import FuncFormatter, NullLocator
    ticks = logarithmic_ticks(min(values), max(values))
    axes.set_yscale("log")
    axes.set_ylim(0.95 * min(ticks[0], *values), 1.05 * max(ticks[-1], *values))
    axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def count_axis(axes, counts, name):
    """The x axis: numbers of ranks or nodes, of which some are labelled."""
    from matplotlib.ticker import NullLocator
    shown = counts[::-1][::math.ceil(len(counts) / 7)][::-1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [number_text(count) for count in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(name)


def legend_below(axes, columns=2):
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncol=columns, columnspacing=1, handlelength=1.8)


def draw(out, figures):
    """Writes NAME.svg, NAME.pdf, NAME.png and the caption NAME.txt of each of (name, width, height, caption, function). Returns
    the captions by name. Raises ImportError."""
    pyplot = drawing()
    captions = {}
    with pyplot.rc_context(STYLE):
        for name, width, height, caption, fill in figures:
            figure = pyplot.figure(figsize=(width, height), layout="constrained")
            fill(figure)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
            figure.savefig(out / f"{name}.pdf", metadata={"CreationDate": None})
            figure.savefig(out / f"{name}.png", dpi=300)
            pyplot.close(figure)
            write(out / f"{name}.txt", caption + "\n")
            captions[name] = caption
    return captions
