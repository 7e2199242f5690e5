"""scripts/study --proposal FOLDER: strong and weak scaling measured apart, and a folder to attach to an application."""
import copy
import shlex
import sys

from benchmark import give_up, plural, run, say, write
from proposal import cost, jobs, nodes, report, table
from scaling import elements, energy, figure_style, plots, runner, slurm
from scaling.prediction import predict
from scaling.settings import missing, stored_settings
from scaling.summary import summarize


def studies_of(options):
    """Yields (name, the options of this study): strong scaling has the largest global batch of weak scaling."""
    for name in [options.scaling] if options.scaling else ["weak", "strong"]:
        own = copy.copy(options)
        own.scaling, own.out = name, options.proposal / name
        if not options.scaling and name == "strong":
            own.batch *= max(options.ranks)
        yield name, own


def planned(own, launcher):
    return launcher.plan(own.ranks, own.repeat)


def describe(options, arguments):
    """The dry run's text."""
    launcher = runner.Launcher(options)
    studies = []
    for name, own in studies_of(options):
        plan = planned(own, launcher)
        studies.append((name, runner.settings_of(own, launcher), plan, missing(own.out, plan)))
    return jobs.describe(studies, launcher, arguments, options.proposal, options.repeat)


def held_out_error(summary):
    """The prediction's relative error at the number of ranks that was held out, or None."""
    found = summary["prediction"].get("interference", {}).get("held_out")
    speed = stored_settings(summary).speed
    measured = {s["ranks"]: s[speed]["median"] for s in summary["steps"]}
    return next((p[speed] / measured[found] - 1 for p in summary["prediction"].get("predictions", []) if p["ranks"] == found), None)


def summary_of(own, options, meter):
    found = summarize(own.out, meter)
    found["prediction"] = predict(found, own.out, options.program, options.link)
    error = held_out_error(found)
    return {**nodes.by_unit(found), "held_out_error": error}


def figures_of(name, summary):
    """The figures for the folder: a prediction's includes the measured speed."""
    kept = {"ledger", "all-reduce", "predicted" if summary["prediction"].get("predictions") else "speed"}
    return [(f"{name}-{figure}", *rest) for figure, *rest in plots.figures(summary) if figure in kept]


def readme(options, arguments, parts, left):
    settings, facts = stored_settings(parts[0][1]), parts[0][1]["provenance"]
    lines = [f"# Scaling of {settings.model}", "", f"Measured {facts['when']} with {facts['program']}, {facts['mpi']}.", "",
             "| file | content |", "|---|---|", "| `report.html` | the report, with the figures inside |",
             "| `report.md` | the same as text |", "| `data.csv` | a row for each measurement, units in the header |",
             "| `NAME.svg`, `NAME.png`, `NAME.pdf` | figures, 3.3 or 7 inches wide |", "| `NAME.txt` | a figure's caption |",
             "| `doctor.txt` | `annulus doctor`: versions, devices, and what was used |",
             "| `commands.txt` | the exact command of every measurement |",
             "| `weak/`, `strong/` | studies: `study.json`, and `raw/` with every measurement |", "",
             "Measured again, or continued, with", "", "```", f"scripts/study {shlex.join(arguments)}", "```", "",
             "The first 4 to 8 steps of each measurement are left out.", ""]
    if left:
        lines += ["Not measured yet; the same command continues:", "", *(f"- {text}" for text in left), ""]
    return "\n".join(lines)


def commands(folders):
    from scaling.settings import load
    return "".join(f"# {m['began']}, {m['host']}\n{m['command']}\n" for folder in folders for m in load(folder))


def render(options, arguments, target, prices):
    """Writes the folder from the measurements. Returns the texts of missing ones."""
    launcher = runner.Launcher(options)
    own_options = list(studies_of(options))
    left = [f"{name}: {m.kind}, {plural(m.ranks, 'rank')}, repeat {m.repeat}" for name, own in own_options
            for m in missing(own.out, planned(own, launcher))]
    folder, parts = options.proposal, []
    meter = energy.Meter(options.energy_csv) if options.energy_csv else None
    own_options = [(name, own) for name, own in own_options if list((own.out / "raw").glob("step-*.json"))]
    if not own_options:
        give_up(f"{folder}: nothing has been measured")
    for name, own in own_options:
        summary = summary_of(own, options, meter)
        costs = list(cost.rows(summary, target, prices)) if target else []
        captions = figure_style.draw(folder, figures_of(name, summary))
        parts.append((name, summary, list(captions.items()), costs))
    found = list(report.blocks(parts, left, target, prices))
    folders = [own.out for _, own in own_options]
    write(folder / "report.md", elements.markdown(found, folder))
    write(folder / "report.html", elements.page(found, folder))
    write(folder / "data.csv", table.text(folders, meter))
    write(folder / "commands.txt", f"# the study\nscripts/study {shlex.join(arguments)}\n" + commands(folders))
    write(folder / "doctor.txt", run([options.program, "doctor"], 60)[0])
    write(folder / "README.md", readme(options, arguments, parts, left))
    return left


def study_proposal(options, arguments):
    """Returns whether everything was measured, or a round of a job array."""
    if options.dry_run:
        print(describe(options, arguments))
        return True
    plots.expect_matplotlib()
    target = cost.read_target(options.target) if options.target else None
    prices = cost.Prices(options.price_per_node_hour, options.price_per_kwh, options.watts_per_node)
    options.proposal.mkdir(parents=True, exist_ok=True)
    if options.slurm is not None and not runner.in_slurm():
        whole = slurm.measure(options, arguments, options.proposal,
                      [(own.out, planned(own, runner.Launcher(own))) for _, own in studies_of(options)])
    else:
        whole = True
        for name, own in studies_of(options):
            say(f"{name} scaling")
            whole = runner.measure_all(own) and whole
    left = render(options, arguments, target, prices)
    print((options.proposal / "report.md").read_text())
    for text in left:
        print(f"not measured: {text}", file=sys.stderr)
    return whole
