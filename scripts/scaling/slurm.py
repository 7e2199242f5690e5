"""A study as a Slurm job: one allocation, sized for the largest number of ranks, runs all measurements. So all numbers of
ranks run on the same nodes and alternate, with a single wait in the queue. The price is idle nodes while few ranks are
measured."""
import math
import shlex
import shutil
import subprocess
import sys
import time

from benchmark import ROOT, give_up, say
from scaling import status
from scaling.settings import missing, plan

POLL_SECONDS = 5


def slurm(*command):
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        give_up(f"{command[0]} failed: {finished.stderr.strip() or finished.stdout.strip()}")
    return finished.stdout.strip()


def is_queued(job):
    """Whether the job is waiting or running. A job that Slurm has forgotten is not; if Slurm does not answer, it may be."""
    shown = subprocess.run(["squeue", "--noheader", "--format=%i", f"--jobs={job}"], capture_output=True, text=True)
    if shown.returncode != 0:
        return "Invalid job id" not in shown.stderr
    return job in shown.stdout.split()


def submit(options, arguments, out):
    """The identifier of a new job, or of an earlier one that has not ended."""
    note = out / "slurm-job"
    if note.exists() and is_queued(job := note.read_text().strip()):
        say(f"job {job} is already running this study")
        return job
    inside = [sys.executable, str(ROOT / "scripts/study"), *arguments]
    ranks, on_node = max(options.ranks), options.ranks_per_node
    nodes = [f"--nodes={math.ceil(ranks / on_node)}", f"--ntasks-per-node={on_node}"] if on_node else []
    job = slurm("sbatch", "--parsable", "--job-name=study", "--exclusive", f"--ntasks={ranks}", *nodes,
                f"--output={out.resolve()}/slurm-%j.log", *shlex.split(options.slurm),
                f"--wrap=exec {shlex.join(inside)}").split(";")[0]
    note.write_text(job + "\n")
    say(f"submitted job {job}, which continues if this program is interrupted; its log is {out}/slurm-{job}.log")
    return job


def measure(options, arguments, out, studies):
    """Submits a job and waits for it. Returns whether all measurements are complete. `out`: the log's folder; `studies`: a
    folder and the planned measurements of each."""
    if not shutil.which("sbatch"):
        give_up("--slurm: sbatch not found")

    def left():
        return sum(len(missing(folder, planned)) for folder, planned in studies)

    out.mkdir(parents=True, exist_ok=True)
    count = sum(len(planned) for _, planned in studies)
    if not left():
        return True
    job = submit(options, arguments, out)
    try:
        while is_queued(job):
            status.show(f"study: job {job}: {count - left()} of {count} measurements are there")
            time.sleep(POLL_SECONDS)
    finally:
        status.show("")
    if left():
        say(f"job {job} ended, but {left()} of {count} measurements are missing; see {out}/slurm-{job}.log")
    return not left()


def measure_all(options, arguments):
    return measure(options, arguments, options.out, [(options.out, plan(options.ranks, options.repeat))])
