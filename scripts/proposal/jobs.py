"""What a dry run shows: the node hours that the measurements need, and job scripts for Slurm, PBS and LSF."""
import math
import os
import shlex
import sys

from benchmark import ROOT, plural
from scaling.runner import ALL_REDUCE_SHARE, algorithms_of

START_SECONDS = 10   # to start ranks, create the network, warm up and profile it; more for large networks
MARGIN = 1.5         # of a job's time limit


def seconds_of(measurement, settings):
    """An estimate."""
    if measurement.kind == "step":
        return START_SECONDS + settings.seconds * (1 if measurement.ranks == 1 else 2)  # also without all-reduces
    return START_SECONDS + settings.seconds * ALL_REDUCE_SHARE * len(settings.sizes) * len(algorithms_of(settings, measurement))


def node_seconds(planned, settings, nodes):
    """In a job that has all nodes while few of them measure."""
    return nodes * sum(seconds_of(m, settings) for m in planned)


SCRIPTS = {
    "Slurm": """#!/bin/bash
#SBATCH --job-name=study
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={ranks_per_node}
#SBATCH --cpus-per-task={threads}
#SBATCH --exclusive
#SBATCH --time={limit}:00
#SBATCH --output={out}/slurm-%j.log
{array}cd {here}
exec {command}
""",
    "PBS": """#!/bin/bash
#PBS -N study
#PBS -l select={nodes}:ncpus={cores}:mpiprocs={ranks_per_node}
#PBS -l place=scatter:exclhost
#PBS -l walltime={limit}:00
#PBS -j oe
{array}cd {here}
exec {command}
""",
    "LSF": """#!/bin/bash
#BSUB -J {name}
#BSUB -n {ranks}
#BSUB -R "span[ptile={ranks_per_node}]"
#BSUB -x
#BSUB -W {limit}
#BSUB -o {out}/lsf-%J.log
cd {here}
exec {command}
"""}
ARRAYS = {"Slurm": ("#SBATCH --array=1-{repeats}\n", "$SLURM_ARRAY_TASK_ID"), "PBS": ("#PBS -J 1-{repeats}\n", "$PBS_ARRAY_INDEX"),
          "LSF": ("", "$LSB_JOBINDEX")}


def command_of(arguments, index):
    """The study's command in a job; `index`: the variable with the round in a job array, or None."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own = [word for word in arguments[:at] if word != "--dry-run" and not word.startswith("--slurm")]
    study = shlex.join([sys.executable, str(ROOT / "scripts/study"), *own])
    return study + (f" --round {index}" if index else "") + (" " + shlex.join(arguments[at:]) if arguments[at:] else "")


def script(system, arguments, launcher, ranks, out, seconds, rounds):
    """A job's; `rounds`: of a job array, in which each job measures a round, or None."""
    minutes = math.ceil(MARGIN * seconds / 60) + 5
    directive, index = ARRAYS[system]
    return SCRIPTS[system].format(
        nodes=math.ceil(max(ranks) / launcher.ranks_per_node), ranks=max(ranks), ranks_per_node=launcher.ranks_per_node,
        threads=launcher.threads, cores=launcher.threads * launcher.ranks_per_node, out=shlex.quote(str(out.resolve())),
        limit=f"{minutes // 60}:{minutes % 60:02d}", here=shlex.quote(os.getcwd()),
        command=command_of(arguments, index if rounds else None),
        name=f'"study[1-{rounds}]"' if rounds else "study", array=directive.format(repeats=rounds) if rounds else "")


def describe(studies, launcher, arguments, out, repeats):
    """The dry run's text. `studies`: for each kind of scaling (name, settings, planned measurements, missing ones)."""
    most = max(m.ranks for _, _, planned, _ in studies for m in planned)
    nodes = math.ceil(most / launcher.ranks_per_node)
    seconds = sum(seconds_of(m, settings) for _, settings, _, missing in studies for m in missing)
    lines = [f"{plural(nodes, 'node')} of {plural(launcher.ranks_per_node, 'rank')} with {plural(launcher.threads, 'thread')} each"]
    for name, settings, planned, missing in studies:
        hours = node_seconds(missing, settings, nodes) / 3600
        lines.append(f"{name}: {len(planned) - len(missing)} of {len(planned)} measurements are complete; the other "
                     f"{len(missing)} need about {hours:.2f} node hours"
                     + (": " + ", ".join(m.file_name.removesuffix(".json") for m in missing[:8])
                        + (" ..." if len(missing) > 8 else "") if missing else ""))
    lines.append(f"In all about {nodes * seconds / 3600:.2f} node hours, in a job of {plural(nodes, 'node')} for about "
                 f"{seconds / 60:.0f} min, estimated with {START_SECONDS} s to start each measurement.")
    ranks = [most]
    for system in SCRIPTS:
        lines += [f"\n--- {system} ---", script(system, arguments, launcher, ranks, out, seconds, None),
                  f"--- {system}, a job array with a round in each job ---",
                  script(system, arguments, launcher, ranks, out, seconds / repeats, repeats)]
    return "\n".join(lines)
