"""report.md and report.html of a study: the same headings, lines, tables and figures, written twice."""
import json

from benchmark import format_size, number, plural, say, write
from scaling import elements, extra_p, plots
from scaling.elements import Figure, Heading, Line, Table, Warnings
from scaling.prediction import PREDICTED, predict
from scaling.settings import stored_settings
from scaling.summary import summarize
from scaling.time_to_goal import time_to_goal
from scaling.time_to_loss import read_noise, time_to_loss

# --- Sections ---------------------------------------------------------------------------------------------------------

def interval_text(of, text_of):
    """Empty without an interval: for a single repeat, and for 100 % by definition."""
    return f" [{text_of(of['low'])}, {text_of(of['high'])}]" if of["high"] > of["low"] else ""


def with_interval(estimate):
    return number(estimate["median"]) + interval_text(estimate, number)


def percent(of):
    """The text of an efficiency."""
    return f"{100 * of['value']:.1f} %" + interval_text(of, lambda share: f"{100 * share:.1f}")


def what_was_measured(summary):
    settings, machine, facts = stored_settings(summary), summary["machine"], summary["provenance"]
    computed = f"{settings.batch} {settings.samples} per step"
    if settings.scaling == "weak":
        yield Line(f"Weak scaling: every rank computes {computed}, for every number of ranks.")
    else:
        yield Line(f"Strong scaling: all ranks together compute {computed}. Efficiency is relative to "
                   f"{plural(summary['steps'][0]['ranks'], 'rank')} with the same global batch.")
    yield Line(f"{samples_text(settings)}; all-reduce {settings.all_reduce}; {plural(settings.threads, 'thread')} per rank"
               + (f"; {' '.join(settings.step_options)}" if settings.step_options else "") + ".")
    yield Line(f"{plural(machine['nodes'], 'node')} with {machine['cores']} cores of {machine['processor']} (study run on "
               f"{', '.join(machine['hosts'])}); {summary['device']}; "
               f"{facts['program'] or 'annulus ' + summary['version']}, build {settings.program}.")
    yield Line(f"Measured {facts['when']}, {'job ' + facts['jobs'] if facts['jobs'] else 'in no batch job'}; "
               f"{facts['mpi'] or 'MPI unknown'}; network devices: {facts['networks'] or 'none whose speed can be read'}.")
    if summary["checksum"]:
        yield Line("Every number of ranks computed the same bits (--shards): weights and optimizer state have the checksum "
                   f"{summary['checksum']} after the first steps.")


def samples_text(settings):
    if settings.length:
        samples = f"Windows of {settings.length} tokens"
        return samples + (f" of {settings.data}" if settings.data else
                          f", a vocabulary of {settings.vocabulary}" if settings.vocabulary else "")
    return f"Images of {settings.data}" if settings.data else f"Images of {settings.image}, {settings.classes} classes"


def speed_section(summary):
    settings = stored_settings(summary)
    yield Heading("Speed")
    yield Table(["ranks", "nodes", "batch per rank", "global batch", f"{settings.unit}/s", "step, ms", "efficiency", "of"],
                [[str(s["ranks"]), str(s["nodes"]), str(s["batch_per_rank"]), str(s["global_batch"]),
                  with_interval(s[settings.speed]), with_interval(s["step_ms"]), percent(s["efficiency"]),
                  s["efficiency"]["baseline"]] for s in summary["steps"]])


def ledger_rows(summary):
    """The table's head and rows; by ranks, or by "unit" if the summary has one."""
    parts = list(summary["steps"][0]["ledger_ms"])
    rows = []
    for step in summary["steps"]:
        whole = sum(step["ledger_ms"].values())
        rows.append([str(step.get("count", step["ranks"])), str(step["batch_per_rank"]),
                     *(f"{step['ledger_ms'][part]:.3f} ({100 * step['ledger_ms'][part] / whole:.1f} %)" for part in parts),
                     number(max(step["lateness_ms"], default=0))])
    return [summary.get("unit", "ranks"), "batch per rank", *(part.replace("_", " ") for part in parts), "latest rank, ms"], rows


def ledger_section(summary):
    yield Heading("Breakdown of step time")
    yield Line("The parts of the median step in milliseconds, and the delay of the latest rank's gradients after the first "
               "rank's. The proportions are means over ranks, repeats and typical steps.")
    yield Table(*ledger_rows(summary))


def all_reduce_section(summary):
    if not summary["all_reduce"]:
        return
    yield Heading("All-reduces")
    yield Table(["ranks, algorithm", "size", "microseconds", "algbw, GB/s", "busbw, GB/s"],
                [[f"{row['ranks']}, {row['algorithm']}", format_size(row["bytes"]), with_interval(row["microseconds"]),
                  f"{row['algbw_gb_per_s']['median']:.3f}", f"{row['busbw_gb_per_s']['median']:.3f}"]
                 for row in summary["all_reduce"]])


def beside_measured(ranks, predicted, measured):
    """The measured value and the prediction's error, or the reason why they are missing."""
    if ranks in measured:
        return number(measured[ranks]), f"{100 * (predicted / measured[ranks] - 1):+.1f} %"
    return "extrapolated" if ranks > max(measured) else "not measured", ""


def predicted_interval(of, name, text_of):
    return interval_text({end: of[f"{name}_{end}"] for end in ("low", "high")}, text_of)


def errors_text(errors):
    return f"{100 * errors['low']:.1f} to {100 * errors['high']:+.1f} %"


def interference_text(found):
    def value(part, offset=0):
        return (f"{100 * (found[part]['median'] - offset):.1f} %"
                + interval_text(found[part], lambda of: f"{100 * (of - offset):.1f}"))
    return (f"How ranks disturb each other, measured with {', '.join(map(str, found['ranks']))} ranks: each further rank on a "
            f"node makes a rank's work {value('sharing')} longer; all-reduces make computing beside them "
            f"{value('beside', 1)} longer; the mean random delay of a rank is {value('waiting')} of its computing, and all "
            "ranks wait for the slowest.")


def judgement(prediction, measured, settings):
    held_out = prediction["interference"]["held_out"]
    if held_out is None:
        return "No number of ranks is held out to judge the prediction: measure a third one."
    speed, = (p[settings.speed] for p in prediction["predictions"] if p["ranks"] == held_out)
    value, error = beside_measured(held_out, speed, measured)
    return (f"Held out, and so a test of the prediction: {held_out} ranks, {number(speed)} {settings.unit}/s predicted, {value} "
            f"measured ({error}).")


def extent(prediction, last):
    if prediction["ends"]:
        return f"The prediction ends at {plural(last, 'rank')}: {prediction['ends']}."
    return (f"Beyond {plural(last, 'rank')} it is an extrapolation to more nodes of "
            f"{plural(prediction['ranks_per_node'], 'rank')}, on such links.")


def prediction_section(summary):
    yield Heading("Measured and predicted")
    prediction = summary["prediction"]
    if "missing" in prediction:
        yield Line(f"Not predicted: {prediction['missing']}.")
        return
    link = prediction["link"]
    settings = stored_settings(summary)
    measured = {step["ranks"]: step[settings.speed]["median"] for step in summary["steps"]}
    options = " ".join([*([] if settings.all_reduce in PREDICTED else [f"--all-reduce {settings.all_reduce}"]),
                        *settings.step_options])
    unknown = f", but not of {options}" if options else ""
    how_well = "not measured" if link["assumed"] else f"root mean square error {100 * link['residual']:.1f} %"
    yield Line(f"`annulus predict-scaling` uses one rank's step and a link of {link['latency_us']:.3g} us and "
               f"{link['bandwidth_gbit_s']:.4g} Gbit/s ({link['source']}; {how_well}){unknown}. Its efficiency is relative to "
               "N times a single predicted rank.")
    yield Line(interference_text(prediction["interference"]))
    yield Line(judgement(prediction, measured, settings))
    last = max(p["ranks"] for p in prediction["predictions"] if p["ranks"] in measured)
    yield Line(extent(prediction, last) + " Its intervals are those of the interference and of the link; beyond the "
               f"measured ranks each doubling widens them by the largest errors at measured numbers of ranks ({settings.unit}/s: "
               f"{errors_text(prediction['errors'][settings.speed])}, efficiency: "
               f"{errors_text(prediction['errors']['efficiency'])}).")
    rows = []
    for p in prediction["predictions"]:
        speed = p[settings.speed]
        rows.append([str(p["ranks"]), str(p["batch_per_rank"]), number(speed) + predicted_interval(p, settings.speed, number),
                     *beside_measured(p["ranks"], speed, measured),
                     f"{100 * p['efficiency']:.1f} %" + predicted_interval(p, "efficiency", lambda of: f"{100 * of:.1f}"),
                     f"{p['waiting_ms']:.3f}", f"{p['exposed_ms']:.3f}"])
    yield Table(["ranks", "batch per rank", f"predicted {settings.unit}/s", "measured", "error", "efficiency", "waiting, ms",
                 "exposed, ms"], rows)


def extra_p_section(summary):
    """Extra-P's models beside our prediction, of the most predicted ranks."""
    if not (models := summary.get("extra_p")):
        return
    yield Heading("Extra-P's models")
    yield Line("Seconds of a step and its parts with p ranks, modeled by Extra-P from the measured points alone.")
    last = summary["prediction"].get("predictions", [{}])[-1]
    ranks = last.get("ranks", summary["steps"][-1]["ranks"])
    yield Table(["part", "model", f"{ranks} ranks, ms", "annulus predict-scaling, ms"],
                [[path, model, f"{1e3 * extra_p.value(model, ranks):.3f}",
                  f"{last[name]:.3f}" if (name := extra_p.PREDICTED.get(path)) in last else "-"]
                 for path, model in models.items()])


def loss_section(summary):
    if not (found := summary.get("time_to_loss")):
        return
    def text(row):
        return f"{row['speedup']:.2f}x" + interval_text(row, lambda value: f"{value:.2f}")

    noise, rows, base = found["noise"], found["rows"], plural(found["baseline_ranks"], "rank")
    worth, = (row for row in rows if row["ranks"] == found["ranks_worth"])
    yield Heading("Time to the same loss")
    yield Line(f"{plural(worth['ranks'], 'rank')}: {text(worth)} faster to the same loss than {base}; beyond "
               f"{worth['ranks']} less than 5 % is gained.")
    yield Line(f"For a gradient-noise scale of {number(noise['scale'])}{interval_text(noise, number)} "
               f"{stored_settings(summary).samples}: the number of steps is proportional to 1 + scale / global batch "
               "(McCandlish et al. 2018), if each batch is trained with its best learning rate. Speeds are measured, or "
               "predicted for other numbers of ranks; the intervals combine those of the speed and of the scale.")
    yield Table(["ranks", "global batch", "faster to the same loss"],
                [[str(row["ranks"]), str(row["global_batch"]), text(row)] for row in rows])


def goal_section(summary):
    if not (found := summary.get("time_to_goal")):
        return
    def text(value):
        return "-" if value is None else number(value)

    def error(row):
        return "-" if None in (row["seconds"], row["predicted_seconds"]) else f"{100 * (row['predicted_seconds'] / row['seconds'] - 1):+.0f} %"

    base = plural(found["baseline_ranks"], "rank")
    scale = "unknown" if found["noise"] is None else number(found["noise"])
    yield Heading(f"Time to {found['goal']}")
    yield Line("Seconds of training, without start-up and evaluations, medians of the seeds. Predicted: the steps of "
               f"{base}, in proportion to 1 + scale / global batch for a gradient-noise scale of {scale} "
               f"{stored_settings(summary).samples}, which the trainings measured, and the predicted speed. The other "
               "numbers of ranks judge the prediction.")
    yield Table(["ranks", "global batch", "steps", "predicted steps", "seconds", "predicted seconds", "error"],
                [[str(row["ranks"]), str(row["global_batch"]), *(text(row[part]) for part in (
                    "steps", "predicted_steps", "seconds", "predicted_seconds")), error(row)] for row in found["rows"]])
    curves = {plural(row["ranks"], "rank"): dict(row["curve"]) for row in found["rows"] if row["curve"]}
    if not curves:
        return
    yield Line("Values of the evaluations, medians of the seeds:")
    yield Table(["samples trained", *curves],
                [[str(samples), *(f"{curve[samples]:.4g}" if samples in curve else "-" for curve in curves.values())]
                 for samples in sorted(set().union(*curves.values()))])


def method_section(summary):
    speeds = [s[stored_settings(summary).speed] for s in summary["steps"]]
    counts = sorted({len(speed["values"]) for speed in speeds})
    confidences = sorted({speed["confidence"] for speed in speeds})
    yield Heading("Method")
    yield Line("Each measurement is a run of `annulus bench step` or `annulus bench all-reduce`, which excludes a warm-up: the "
               "first 4 to 8 steps, the first all-reduce of each size. Numbers of ranks alternated in "
               f"{' to '.join(map(str, counts))} rounds. A step's time is the slowest rank's, the median of a "
               "measurement's steps; the table has the medians of the rounds.")
    yield Line("In brackets: intervals between order statistics, which contain the true median with a confidence of "
               + " to ".join(f"{100 * c:.4g} %" for c in confidences)
               + " (under 6 repeats no interval has 95 %). Efficiency: ratio of medians, 95 % percentile bootstrap, "
               "which is too narrow with few repeats. They cover the variation between runs within the study, not "
               "between days or machines.")


def blocks(summary, captions):
    def drawn(*names):
        return [Figure(name, captions[name]) for name in names if name in captions]

    settings = stored_settings(summary)
    yield Heading(f"Scaling of {settings.model}, {settings.scaling}: {settings.batch_text}", level=1)
    yield from what_was_measured(summary)
    yield Warnings(summary["warnings"]) if summary["warnings"] else Line("No disturbances of the machine were detected.")
    for section, figures in ((speed_section, ["speed"]), (ledger_section, ["ledger", "lateness"]),
                             (all_reduce_section, ["all-reduce"]), (prediction_section, ["predicted"]),
                             (extra_p_section, []), (loss_section, []), (goal_section, []), (method_section, [])):
        yield from section(summary)
        yield from drawn(*figures)


# --- The report -------------------------------------------------------------------------------------------------------

def render(out, program, noise_file, network, extra_p_file=None):
    """Writes study.json, the figures and both reports from the measurements in raw/. `noise_file`: a run's results.json, or
    None; `network`: a given Link between nodes, or None; `extra_p_file`: to be written for Extra-P, or None."""
    summary = summarize(out)
    summary["prediction"] = predict(summary, out, program, network)
    if noise_file:
        summary["time_to_loss"] = time_to_loss(summary, read_noise(noise_file))
    if goal := time_to_goal(summary, out):
        summary["time_to_goal"] = goal
    if extra_p_file:
        extra_p.write_file(out, extra_p_file)
        summary["extra_p"] = extra_p.models(extra_p_file)
    captions = {}
    try:
        captions = plots.draw(out, summary)
    except ImportError as error:
        summary["warnings"].append(f"no figures: {error} (Debian's python3-matplotlib)")
        say(f"SKIPPED figures: {error}")
    report = list(blocks(summary, captions))
    write(out / "study.json", json.dumps(summary, indent=1) + "\n")
    write(out / "report.md", elements.markdown(report, out))
    write(out / "report.html", elements.page(report, out))
    return summary
