"""The parts of scripts/gpu-check: checks with time limits, their commands and logs, alternation with PyTorch, the report."""
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import queue
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
import typing

from benchmark import ROOT, last_line, write

PEERS = ROOT / "scripts/peers"
LEAST_SECONDS = 2  # with less time no check is started

# Open MPI runs as root only with both of these variables. Ranks that outnumber the processors should not spin.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_WAIT_POLICY": "passive"}


class NotRun(Exception):
    """The reason why a check, or the rest of it, cannot be run."""


class Failed(Exception):
    """The reason of a failure."""


class OutOfTime(Exception):
    """The time limit of a check, or of all checks, is over."""


@dataclasses.dataclass(frozen=True)
class Target:
    what: str
    direction: str  # "at least" or "at most"
    wanted: float
    gpu: str = ""  # nvidia-smi's name of the only one for which it is meant; any if empty


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    title: str
    limit: float  # seconds
    make: typing.Callable
    targets: tuple = ()
    call: int = 1  # of gpu-check, of those that share the checks


class Session:
    """The state shared by all checks."""

    def __init__(self, options, scale):
        self.options, self.scale = options, scale
        self.out = options.out.resolve()
        self.end = time.monotonic() + options.seconds
        self.facts = {}
        self.no_programs = self.no_gpu = self.no_pytorch = None  # the reason, if there are none
        self.tuned = {}  # precision -> the tuning file, once it is complete
        self.data_file = options.data

    def left(self):
        return self.end - time.monotonic()

    def program(self, name):
        if self.no_programs:
            raise NotRun(self.no_programs)
        folder = self.options.build.resolve()
        for path in (folder / name, folder / "tests" / name):
            if os.access(path, os.X_OK):
                return path
        raise NotRun(f"no program {name} in {self.options.build}")

    def need_gpu(self):
        if self.no_gpu:
            raise NotRun(self.no_gpu)

    def need_pytorch(self):
        if self.no_pytorch:
            raise NotRun(self.no_pytorch)

    def torch(self, script, *arguments):
        return [*shlex.split(self.options.python), PEERS / script, *arguments]

    def mpirun(self, ranks, command):
        launcher = shlex.split(self.options.mpirun)
        if not shutil.which(launcher[0]):
            raise NotRun(f"no {launcher[0]}")
        return [*launcher, "--oversubscribe", "--bind-to", "none", "-np", ranks, *command]


class Step:
    """A running check: its commands are logged, and killed at its time limit."""

    def __init__(self, session, check):
        self.session, self.check = session, check
        self.folder = session.out / check.name  # for training runs, whose folders must be new
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log = session.out / f"{check.name}.log"
        self.log.write_text("")
        self.rows_file = self.log.with_suffix(".rows.json")
        self.begin = time.monotonic()
        self.cut = session.left() < check.limit
        self.end = self.begin + min(check.limit, session.left())
        self.commands, self.figures, self.rows, self.measured = [], {}, [], {}
        self.failures = {}  # the reasons, by candidate

    def left(self):
        return self.end - time.monotonic()

    def note(self, command, environment=None):
        line = shlex.join([*(f"{name}={value}" for name, value in (environment or {}).items()), *map(str, command)])
        self.commands.append(line)
        with open(self.log, "a") as log:
            log.write(f"\n$ {line}\n")

    def run(self, command, environment=None, folder=None):
        """Returns the output. Raises Failed if the command fails."""
        self.note(command, environment)
        before = self.log.stat().st_size
        with open(self.log, "ab") as log:
            try:
                process = start(command, environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            except OSError as error:
                raise Failed(f"{pathlib.Path(command[0]).name} cannot be started: {error.strerror}") from error
            try:
                process.wait(max(self.left(), 0.1))
            except subprocess.TimeoutExpired:
                raise OutOfTime from None
            finally:
                end(process)
        with open(self.log, "rb") as log:
            log.seek(before)
            output = re.sub(r"\x1b\[[\d;]*m", "", log.read().decode(errors="replace"))
        if process.returncode != 0:
            raise Failed(f"{how_it_ended(process.returncode)}: {last_line(output)}")
        return output

    def bench(self, arguments, ranks=0):
        """Returns the rows of `annulus bench`."""
        self.rows_file.unlink(missing_ok=True)
        command = [self.session.program("annulus"), "bench", *arguments, "--device", "cuda", "--json", self.rows_file]
        self.run(self.session.mpirun(ranks, command) if ranks else command)
        return json.loads(self.rows_file.read_text())["rows"]


def start(command, environment=None, **options):
    return subprocess.Popen(list(map(str, command)), env={**os.environ, **ENVIRONMENT, **(environment or {})},
                            start_new_session=True, **options)


def end(process):
    """Ends a process and its children. A launcher ends its ranks itself, on all hosts."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # remaining children, such as a compiler's helpers
    process.wait()


def how_it_ended(status):
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


# --- PyTorch ----------------------------------------------------------------------------------------------------------

class PyTorch:
    """A running scripts/peers/torch_gpu.py, which keeps its network ready between measurements."""

    def __init__(self, step, variant, model, batch, image, classes, precision, ready_in, options):
        session = step.session
        command = session.torch("torch_gpu.py", "step", model, batch, "--image", image, "--classes", classes,
                                "--precision", precision, "--variant", variant, *options)
        step.note(command)
        self.step = step
        self.log = open(step.log, "a")
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        try:
            self.answer(ready_in)
        except BaseException:
            self.close()
            raise

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, limit):
        try:
            line = self.lines.get(timeout=max(limit, 0.1))
        except queue.Empty:
            raise OutOfTime from None
        if line is None:
            raise Failed(f"PyTorch: {how_it_ended(self.process.wait())}")
        self.log.write(line)
        self.log.flush()
        said = json.loads(line)
        if "median_seconds" not in said and "ready_seconds" not in said:
            raise Failed(f"PyTorch: {said.get('error') or said.get('missing')}")
        return said

    def measure(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer(self.step.left())

    def close(self):
        end(self.process)
        self.log.close()


@contextlib.contextmanager
def pytorch(step, variants, model, batch, image, classes, precision, seconds, options=()):
    """Name -> measurement function of each variant that works; the errors of the others are added to the step's figures."""
    with contextlib.ExitStack() as running:
        candidates = {}
        for variant in variants:
            name = f"PyTorch {variant}"
            try:
                step.session.need_pytorch()
                # A slow compilation must leave time to measure the others.
                peer = PyTorch(step, variant, model, batch, image, classes, precision, 0.7 * step.left(), options)
            except NotRun as missing:
                step.figures[name] = f"not run: {missing}"
            except Failed as error:
                step.figures[name] = f"failed: {error}"
            except OutOfTime:
                step.figures[name] = "not ready in time"
            else:
                running.callback(peer.close)
                candidates[name] = functools.partial(peer.measure, seconds)
        yield candidates


def take_turns(step, candidates, rounds):
    """Name -> its results of each round. At least one round, and up to `rounds` if there is time.

    A candidate that fails has no further turns and fails the check in the end, but the others' results are kept.
    Candidates without results are left out.
    """
    said = {name: [] for name in candidates}
    for _ in range(rounds):
        begin = time.monotonic()
        try:
            for name, measure in candidates.items():
                take_turn(step, name, measure, said[name])
        except OutOfTime:
            if not any(said.values()):
                raise
            step.figures.update({name: "not measured in time" for name, results in said.items() if not results})
            break
        if step.left() < 1.2 * (time.monotonic() - begin):
            break
    return {name: results for name, results in said.items() if results}


def take_turn(step, name, measure, results):
    if name in step.failures:
        return
    try:
        results.append(measure())
    except (NotRun, OutOfTime):
        raise
    except Exception as error:  # such as invalid output
        step.failures[name] = reason_of(error)


def reason_of(error):
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"


def spread(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "rounds": len(values)}


# --- Running and reporting --------------------------------------------------------------------------------------------

def run_check(session, check):
    if session.left() < LEAST_SECONDS:
        return not_run(check, "out of time")
    step = Step(session, check)
    status, reason = "passed", None
    try:
        check.make(step)
        if step.failures:
            raise Failed("; ".join(f"{name}: {reason}" for name, reason in step.failures.items()))
    except NotRun as error:
        status, reason = "not run", str(error)
    except OutOfTime:
        status, reason = ("not run", "out of time: cut off") if step.cut else ("failed", "stopped at its time limit")
    except Exception as error:  # Failed, or invalid output: the other checks continue
        status, reason = "failed", reason_of(error)
    return {"name": check.name, "title": check.title, "status": status, "reason": reason,
            "seconds": round(time.monotonic() - step.begin, 2), "commands": step.commands, "log": step.log.name,
            "figures": step.figures, "rows": step.rows, "measured": step.measured}


def judge(checks, results, quick, gpu=""):
    """Every target of every check, including unmeasured ones. `gpu`: the name of the one here."""
    rows = []
    for check in checks:
        measured = next((r.get("measured", {}) for r in results if r["name"] == check.name), {})
        for target in check.targets:
            for of, value in measured.get(target.what, [(check.title, None)]):
                elsewhere = target.gpu not in ("", gpu)
                rows.append({"check": check.name, "of": of, "what": target.what, "value": value,
                             "direction": target.direction, "wanted": target.wanted,
                             "only on": f"{target.gpu}, this is {gpu or 'another GPU'}" if elsewhere else "",
                             "status": judgement(target, value, quick or elsewhere)})
    return rows


def judgement(target, value, exempt):
    if value is None:
        return "not measured"
    if exempt:
        return "not judged"
    return "met" if (value >= target.wanted if target.direction == "at least" else value <= target.wanted) else "missed"


def overall(results):
    statuses = {result["status"] for result in results}
    return "failed" if "failed" in statuses else "incomplete" if "not run" in statuses else "passed"


def not_run(check, reason):
    return {"name": check.name, "title": check.title, "status": "not run", "reason": reason, "seconds": 0}


def write_report(session, checks, results):
    results = results + [not_run(check, "not yet") for check in checks[len(results):]]
    report = {"status": overall(results), "quick": session.options.quick,
              "seconds": round(session.options.seconds - session.left(), 1), "budget": session.options.seconds,
              "arguments": sys.argv[1:], "facts": session.facts,
              "targets": judge(checks, results, session.options.quick, session.facts.get("GPU", {}).get("name", "")),
              "checks": results}
    write(session.out / "report.json", json.dumps(report, indent=2) + "\n")
    write(session.out / "report.md", markdown(report, session.out))
    if session.options.archive:
        archive(session)
    return report


def archive(session):
    """The reports, logs and tuning file in one file; not the data and the trained networks."""
    file = session.options.archive
    unfinished = file.with_name(f".{file.name}")
    with tarfile.open(unfinished, "w:gz") as tar:
        for path in sorted(session.out.iterdir()):
            if path.is_file() and path.suffix != ".h5" and path not in (file.resolve(), unfinished.resolve()):
                tar.add(path, f"{session.out.name}/{path.name}")
    unfinished.rename(file)


def text_of(value):
    if isinstance(value, dict):
        if not value:
            return "none"
        return ", ".join(f"{name} {text_of(v)}" for name, v in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def table(rows):
    """A table of dictionaries with the same names. Numbers are right-aligned."""
    numbers = [all(isinstance(row[name], (int, float, type(None))) for row in rows) for name in rows[0]]
    lines = [list(rows[0]), ["---:" if number else "---" for number in numbers],
             *([text_of(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def target_line(row):
    value = "" if row["value"] is None else f"{text_of(row['value'])} "
    condition = f" on {row['only on']}" if row["only on"] else ""
    return f"{row['status']}: {row['of']}: {value}{row['what']} ({row['direction']} {row['wanted']}{condition})"


def markdown(report, out):
    statuses = [check["status"] for check in report["checks"]]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("passed", "failed", "not run"))
    parts = [f"# GPU check: {report['status']}",
             f"{counts}; {report['seconds']:.0f} of {report['budget']:.0f} s"
             + (". Quick: sizes are small, and targets are not checked." if report["quick"] else ".")]
    if report["targets"]:
        parts += ["## Targets", "Ratios of medians over the alternating rounds of this run.",
                  "\n".join(f"- {target_line(row)}" for row in report["targets"])]
    parts += ["## Checks", table([
        {"check": c["name"], "status": c["status"], "s": c["seconds"],
         "what": c["title"] + (f": {c['reason']}" if c["reason"] else "")} for c in report["checks"]])]
    for check in report["checks"]:
        parts += check_section(check, out)
    return "\n\n".join(parts) + "\n"


def check_section(check, out):
    """A check's results and commands, and the end of its log if it failed."""
    if not check.get("commands") and not check.get("figures"):
        return []
    parts = [f"## {check['name']}: {check['title']}"]
    texts = {name: value for name, value in check["figures"].items() if isinstance(value, list)}
    if lines := [f"- {name}: {text_of(value)}" for name, value in check["figures"].items() if name not in texts]:
        parts.append("\n".join(lines))
    for name, text in texts.items():
        parts.append(f"{name}:\n\n```\n" + "\n".join(text) + "\n```")
    if check["rows"]:
        parts.append(table(check["rows"]))
    if check["status"] == "failed":
        log = (out / check["log"]).read_text(errors="replace").splitlines()[-40:]
        parts.append(f"Failed: {check['reason']}. The end of {check['log']}:\n\n```\n" + "\n".join(log) + "\n```")
    if check["commands"]:
        parts.append("```\n" + "\n".join(dict.fromkeys(check["commands"])) + "\n```")
    return parts
