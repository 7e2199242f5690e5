"""Runs the measurements: ranks on this machine, on hosts, or in a Slurm job, one measurement after the other."""
import dataclasses
import datetime
import json
import math
import os
import shlex
import time

from benchmark import ROOT, give_up, plural, run_annulus, say, write
from scaling import energy, noise, provenance, status
from scaling.ranks import job_slots
from scaling.settings import Settings, expect_same, hash_of, missing, plan

USAGE_ERROR = "exit status 2:"
ALL_REDUCE_SHARE = 0.1  # share of a step measurement's seconds, for each size and algorithm of all-reduces


def in_slurm():
    return "SLURM_JOB_ID" in os.environ


class Launcher:
    """Nodes are filled one after the other, each with the ranks per node of the largest number of ranks."""

    def __init__(self, options):
        self.slurm = in_slurm() and not options.hosts
        hosts, most = options.hosts or ([] if self.slurm else dict.fromkeys(job_slots())), max(options.ranks)
        self.hosts = [host.partition(":")[0] for host in hosts]
        nodes = int(os.environ["SLURM_JOB_NUM_NODES"]) if self.slurm else max(1, len(self.hosts))
        self.ranks_per_node = getattr(options, "ranks_per_node", None) or math.ceil(most / nodes)
        if most > nodes * self.ranks_per_node and not getattr(options, "dry_run", False) and getattr(options, "slurm", None) is None:
            give_up(f"{most} ranks are {math.ceil(most / self.ranks_per_node)} nodes of {self.ranks_per_node}, and there "
                    f"{'is' if nodes == 1 else 'are'} {plural(nodes, 'node')} here: give --hosts, --hosts-file or --slurm")
        self.threads = (options.threads or int(os.environ.get("SLURM_CPUS_PER_TASK", 0))
                        or max(1, noise.cores() // self.ranks_per_node))

    def on_a_node(self, measurement):
        """The most ranks on a node. The network between nodes is measured with one."""
        return 1 if measurement.kind == "network" else min(measurement.ranks, self.ranks_per_node)

    def start(self, ranks, on_a_node=None):
        """The beginning of a command; nodes are filled if `on_a_node` is not given."""
        nodes = math.ceil(ranks / (on_a_node or self.ranks_per_node))
        if self.slurm:
            return ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "--cpu-bind=cores", f"--nodes={nodes}", f"--ntasks={ranks}",
                    f"--cpus-per-task={self.threads}"]
        hosts = ["--hosts", ",".join(self.hosts[:nodes])] if self.hosts else []
        return [ROOT / "scripts/launch", "-np", ranks, *hosts]

    def plan(self, rank_counts, repeats):
        """The measurements of steps and all-reduces, and of the network if nodes have several ranks."""
        nodes = math.ceil(max(rank_counts) / self.ranks_per_node)
        return plan(rank_counts, repeats, nodes if self.ranks_per_node > 1 else 1)


def settings_of(options, launcher):
    data = str(options.data.resolve()) if options.data else ""
    settings = Settings(options.model, options.image or ("" if data else "28x28x1"), options.classes or (0 if data else 10),
                        options.scaling, options.batch, launcher.threads, options.all_reduce, options.further,
                        options.sizes, options.seconds, hash_of(options.program), options.length, options.vocabulary, data)
    if uneven := [ranks for ranks in options.ranks if settings.scaling == "strong" and settings.batch % ranks]:
        give_up(f"--strong --batch {settings.batch} is not a multiple of {', '.join(map(str, uneven))} ranks; change "
                "--batch or --ranks")
    return settings


def algorithms_of(settings, measurement):
    """The algorithms of a measurement without steps."""
    return ["message-ring"] if measurement.kind == "network" else list(dict.fromkeys([settings.all_reduce, "message-ring", "mpi"]))


def bench_arguments(settings, measurement):
    if measurement.kind != "step":
        return ["all-reduce", "--sizes", ",".join(map(str, settings.sizes)), "--algorithms",
                ",".join(algorithms_of(settings, measurement)),
                "--threads", settings.threads, "--seconds", f"{ALL_REDUCE_SHARE * settings.seconds:g}"]
    samples = [word for name in ("image", "classes", "length", "vocabulary", "data") if (value := getattr(settings, name))
               for word in (f"--{name}", value)]
    # Shards have an all-reduce of their own, and no steps without it.
    all_reduces = [] if "--shards" in settings.step_options else [
        "--all-reduce", settings.all_reduce + (",none" if measurement.ranks > 1 else "")]
    return ["step", "--model", settings.model, *samples, "--batch", settings.batch_per_rank(measurement.ranks),
            *all_reduces, "--threads", settings.threads, "--seconds", settings.seconds, *settings.step_options]


def measure(measurement, settings, launcher, options, load_at_begin):
    """Writes the measurement's file. Returns None, or the reason of a failure."""
    on_a_node = launcher.on_a_node(measurement)
    start, arguments = launcher.start(measurement.ranks, on_a_node), bench_arguments(settings, measurement)
    began = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    with noise.Watch(sees_ranks=not launcher.slurm and not launcher.hosts) as watch:
        result, failure = run_annulus(start, arguments, options.limit, {"OMP_NUM_THREADS": str(settings.threads)},
                                      program=options.program, folder=options.out / "raw")
    ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    if failure:
        return failure
    if measurement.kind == "step" and settings.speed not in result["rows"][0]:
        return f"{settings.model} reads {'images: give --image' if settings.length else 'text: give --length'}"
    write(options.out / "raw" / measurement.file_name, json.dumps(
        {**dataclasses.asdict(measurement), "nodes": math.ceil(measurement.ranks / on_a_node),
         "ranks_per_node": on_a_node, "began": began, "ended": ended, "sacct": energy.read_sacct() if launcher.slurm else None,
         "command": shlex.join(map(str, [*start, options.program, "bench", *arguments])),
         "settings": dataclasses.asdict(settings), "machine": noise.machine(), "host": os.uname().nodename,
         "provenance": {"job": provenance.job(), "program": provenance.version(options.program),
                        "networks": ", ".join(provenance.networks())},
         "load_at_begin": load_at_begin, "noise": watch.found, "result": result}, indent=1) + "\n")
    return None


def measure_all(options):
    """Runs the missing measurements. Returns whether all are complete."""
    load_at_begin = os.getloadavg()[0]  # later load averages include this study
    launcher = Launcher(options)
    settings = settings_of(options, launcher)
    (options.out / "raw").mkdir(parents=True, exist_ok=True)
    expect_same(options.out, settings, noise.machine())
    planned = launcher.plan(options.ranks, options.repeat)
    waiting = [m for m in missing(options.out, planned) if options.round in (None, m.repeat)]
    say(f"{len(planned) - len(missing(options.out, planned))} of {len(planned)} measurements are complete")
    if waiting:
        noise.expect_quiet(options.even_if_busy or provenance.job())  # a job has waited in the queue
    failed, started = set(), time.monotonic()
    for count, m in enumerate(waiting, 1):
        if (m.kind, m.ranks) in failed:
            continue
        begin = time.monotonic()
        what = f"{count} of {len(waiting)}: {m.kind}, {plural(m.ranks, 'rank')}, repeat {m.repeat}: "
        left = (begin - started) / (count - 1) * (len(waiting) - count + 1) if count > 1 else None
        status.show(f"study: {what}measuring" + (f", {status.time_left(left)} in all" if left else ""))
        try:
            failure = measure(m, settings, launcher, options, load_at_begin)
        finally:
            status.show("")
        say(what + (f"FAILED, its other repeats are skipped: {failure}" if failure
                    else f"{time.monotonic() - begin:.1f} s"))
        if failure and failure.startswith(USAGE_ERROR):
            give_up("the study ends, because the program does not accept these options")
        if failure:
            failed.add((m.kind, m.ranks))
    return not failed
