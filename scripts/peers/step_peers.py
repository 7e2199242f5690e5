"""Other frameworks' training steps, for scripts/bench step: finds the fastest settings of each, and measures them on request.

Each rank is a process with its own cores (torch_ddp.py, tensorflow_step.py) that keeps its network ready
between measurements, so that start-up and compilation are neither measured nor repeated.
"""
import dataclasses
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

from benchmark import ROOT, last_line, number, say
from step_rank import GPTS, samples, unit

START_LIMIT, TURN_LIMIT = 900, 600  # seconds; compiling ResNet-50 on one core takes minutes
TRIALS, TRIAL_SECONDS, WARM_UP_SECONDS = 3, 0.5, 0.3


class Failed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Framework:
    title: str
    program: str
    compilers: tuple
    layouts: tuple = ()  # of images

    def choices(self, model):
        """Returns the choices for each setting."""
        return [self.layouts, self.compilers] if self.layouts and model not in GPTS else [self.compilers]


# Every rank is pinned to its cores, and DistributedDataParallel has its default buckets: on one machine the effects of
# pinning and of a single bucket were below the noise.
FRAMEWORKS = {
    "torch": Framework("PyTorch", "torch_ddp.py", ("eager", "compiled"), ("channels last", "NCHW")),
    "tensorflow": Framework("TensorFlow", "tensorflow_step.py", ("graph", "XLA")),
}


def free_ports(count):
    """Returns the first of `count` consecutive free ports."""
    for first in range(20000 + os.getpid() % 10000, 60000, 17):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for port, s in enumerate(sockets, first):
                s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for s in sockets:
                s.close()
    raise Failed("no free ports")


class Rank:
    def __init__(self, command, cores, threads):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",  # ends with this program
             "taskset", "-c", ",".join(map(str, cores)), *map(str, command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": "1"})
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, turns, steps):
        try:
            self.process.stdin.write(f"{turns} {steps}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; answer() reports it

    def answer(self, end):
        try:
            line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
        except queue.Empty:
            raise Failed("no answer in time") from None
        if line is None:
            status = self.process.wait()
            self.errors.seek(0)
            raise Failed(f"exit status {status}: {last_line(self.errors.read())}")
        return json.loads(line)

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.errors.close()


def start_ranks(peer, program, arguments, ranks, threads, settings):
    cores = sorted(os.sched_getaffinity(0))[:ranks * threads]
    # TensorFlow's ranks need a port for each of their two servers.
    meet = ["--meet", f"127.0.0.1:{free_ports(2 * ranks)}"] if ranks > 1 else []
    command = [ROOT / "build/peers" / peer / "bin/python", ROOT / "scripts/peers" / program, *arguments,
               "--settings", ", ".join(settings), "--threads", threads, "--ranks", ranks, *meet]
    started = []
    try:
        for rank in range(ranks):
            own = cores[rank * threads:(rank + 1) * threads]
            started.append(Rank([*command, "--rank", rank], own, threads))
    except OSError as error:
        for rank in started:
            rank.close()
        raise Failed(f"{error.filename or error}: {error.strerror}") from error
    return started


class Running:
    """All ranks of one framework with given settings. `program`: default: the framework's."""

    def __init__(self, peer, model, batch, ranks, threads, settings, program=None):
        self.items = batch * ranks * samples(model)  # images or tokens of a step
        self.all_ranks = start_ranks(peer, program or FRAMEWORKS[peer].program, [model, batch], ranks, threads, settings)
        try:
            self.version = self.turns(2, 1, START_LIMIT)["version"]
            self.step_seconds = self.turns(1, 1)["seconds"]
            self.warm_up()
        except BaseException:
            self.close()
            raise

    def turns(self, turns, steps, limit=TURN_LIMIT):
        """Returns the slowest rank's seconds of a step, the median of all turns."""
        for rank in self.all_ranks:
            rank.ask(turns, steps)
        end = time.monotonic() + limit
        answers = [rank.answer(end) for rank in self.all_ranks]
        return {"seconds": statistics.median(map(max, zip(*(answer["seconds"] for answer in answers)))),
                "peak_memory_bytes": max(answer["peak_memory_bytes"] for answer in answers),
                "version": answers[0]["version"]}

    def warm_up(self):
        steps = min(100, round(WARM_UP_SECONDS / self.step_seconds))
        if steps > 0:
            self.step_seconds = self.turns(1, steps)["seconds"]

    def measure(self, seconds):
        self.warm_up()
        said = self.turns(max(3, round(seconds / self.step_seconds)), 1)  # each step separately, like `bench step`
        return {"images_per_second": self.items / said["seconds"],
                "peak_memory_bytes": said["peak_memory_bytes"]}

    def close(self):
        for rank in self.all_ranks:
            rank.close()


class Fastest:
    """A framework with its fastest settings. Settings are tried one by one, because there are too many combinations."""

    def __init__(self, peer, model, batch, ranks, threads):
        self.running, self.settings, self.speed, tried = None, None, 0, set()
        choices = FRAMEWORKS[peer].choices(model)
        best = [names[0] for names in choices]
        failure = None
        for place, names in enumerate(choices):
            for name in names:
                settings = (*best[:place], name, *best[place + 1:])
                if settings in tried:
                    continue
                tried.add(settings)
                try:
                    self.try_settings(peer, model, batch, ranks, threads, settings)
                except Failed as error:
                    failure = error
                    say(f"{FRAMEWORKS[peer].title}, {model}, {ranks} x {threads}, {', '.join(settings)}: {error}")
            best = list(self.settings or best)
        if not self.running:
            raise Failed(str(failure))
        self.version = self.running.version

    def try_settings(self, peer, model, batch, ranks, threads, settings):
        begin = time.monotonic()
        running = Running(peer, model, batch, ranks, threads, settings)
        try:
            # The fastest of several, so that a disturbance of the machine does not decide.
            speed = max(running.measure(TRIAL_SECONDS)["images_per_second"] for _ in range(TRIALS))
            say(f"{FRAMEWORKS[peer].title}, {model}, {ranks} x {threads}, {', '.join(settings)}: {number(speed)} {unit(model)}/s "
                f"after {time.monotonic() - begin:.0f} s")
        except BaseException:
            running.close()
            raise
        if speed > self.speed:
            self.close()
            self.running, self.settings, self.speed = running, settings, speed
        else:
            running.close()

    def measure(self, seconds):
        return self.running.measure(seconds)

    def close(self):
        if self.running:
            self.running.close()
