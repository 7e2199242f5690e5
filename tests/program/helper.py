"""Runs the built program as a user does: from the command line, alone or under mpirun."""
import concurrent.futures
import contextlib
import ctypes
import io
import json
import os
import pathlib
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import h5py
import numpy as np

ANNULUS = os.environ.get("ANNULUS") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "annulus")
MPIRUN = os.environ.get("MPIRUN") or "mpirun"
IMPORT_ARRAYS = pathlib.Path(__file__).resolve().parents[2] / "scripts/import-arrays"
TIMEOUT = 60

# Ranks outnumber cores here, so one thread each. In containers without ptrace Open MPI's single-copy transfers fail. And
# it looks for Omni-Path at each start, for 0.2 s, unless a transport is given.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_pml": "ob1"}

# A checkpoint's groups, and the attributes that a resumed run needs.
STATE = ("parameters", "velocity", "second_moment", "average", "outer_velocity")
PROGRESS = ("step", "epoch", "position", "loss_scale", "good_steps")

STOPPED = 75  # EX_TEMPFAIL: stopped by a signal, with a checkpoint to resume from


class Result:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    @property
    def messages(self):
        """The program's own error lines; mpirun adds a banner of its own around them. Survivors all report the status."""
        lines = [line for line in self.err.splitlines() if line.startswith(("annulus:", "import-arrays:"))]
        return [line for line, before in zip(lines, [None, *lines]) if line != before or "the job ends with" not in line]

    def __str__(self):
        return f"exit status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def path_without(program):
    """$PATH without the folders that have this program."""
    return os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if not pathlib.Path(folder, program).exists())


def command(arguments, ranks):
    """Without mpirun if ranks is 0: MPI then creates a world of one."""
    start = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
    return start + [ANNULUS] + [str(a) for a in arguments]


def start(*arguments, ranks=0, environment=None, prefix=()):
    return start_command(list(prefix) + command(arguments, ranks), environment)


def start_command(line, environment=None):
    return subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **ENVIRONMENT, **(environment or {})}, start_new_session=True)


def finish(process, timeout=TIMEOUT, since=None):
    since = since or time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        result = Result("killed", out, err, timeout)
        raise AssertionError(f"not done after {timeout} s: {' '.join(map(str, process.args))}\n{result}")
    return Result(process.returncode, out, err, time.monotonic() - since)


def run(*arguments, ranks=0, timeout=TIMEOUT, environment=None, prefix=()):
    since = time.monotonic()
    return finish(start(*arguments, ranks=ranks, environment=environment, prefix=prefix), timeout, since)


def import_arrays(*arguments):
    """Runs scripts/import-arrays in this process: starting Python with numpy and h5py takes longer than importing."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(IMPORT_ARRAYS), *map(str, arguments)], [str(IMPORT_ARRAYS.parent)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(str(IMPORT_ARRAYS), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        err.write(f"{end.code}\n" if isinstance(end.code, str) else "")
    finally:
        sys.argv, sys.path[:] = before
    return Result(status, out.getvalue(), err.getvalue(), 0)


def at_once(function, cases):
    """Returns (case, function(case)) for each case. The calls run concurrently: for short runs that mostly wait for
    mpirun to end, which takes a second if a rank failed."""
    cases = list(cases)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        return list(zip(cases, pool.map(function, cases)))


def read_terminal(descriptor):
    """What is written to a pseudo-terminal until all writers have closed it."""
    found = b""
    try:
        while piece := os.read(descriptor, 1 << 16):
            found += piece
    except OSError:  # how Linux reports that
        pass
    os.close(descriptor)
    return found.decode().replace("\r\n", "\n")


def run_on_terminals(command, streams, environment=None):
    """Like run(), with some of the streams "out" and "err" on a terminal each."""
    terminals = {stream: os.openpty() for stream in streams}
    targets = {stream: terminals[stream][1] if stream in streams else subprocess.PIPE for stream in ("out", "err")}
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=targets["out"], stderr=targets["err"],
        env={**os.environ, **ENVIRONMENT, "TERM": "xterm", **(environment or {})}, start_new_session=True)
    timer = threading.Timer(TIMEOUT, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    for _, slave in terminals.values():
        os.close(slave)
    with concurrent.futures.ThreadPoolExecutor() as readers:
        found = {stream: readers.submit(read_terminal, master) for stream, (master, _) in terminals.items()}
        for stream, pipe in (("out", process.stdout), ("err", process.stderr)):
            if pipe:
                found[stream] = readers.submit(lambda pipe=pipe: pipe.read().decode())
        result = Result(process.wait(), found["out"].result(), found["err"].result(), 0)
    timer.cancel()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
    return result


def children(number):
    """The processes that a process has started, such as mpirun its ranks."""
    return [int(child) for child in pathlib.Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def is_running(number):
    try:
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(process):
    """Kills a started program with its ranks, which outlive mpirun for a moment, and returns when all have ended."""
    ranks = children(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    finish(process)
    while any(map(is_running, ranks)):
        time.sleep(0.002)


def images(count, seed, size=28, channels=1, classes=10):
    """Images that a network can learn in a few steps: a bright square whose position gives the class, and noise."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 96, (count, size, size, channels), dtype=np.uint8)
    labels = random.integers(0, classes, count, dtype=np.int32)
    for image, label in zip(pixels, labels):
        row, column = 3 + 11 * (label // 5), 1 + 5 * (label % 5)
        image[row:row + 9, column:column + 5] += np.uint8(128)
    return pixels, labels


def write_data(path, train=500, test=100, size=28, channels=1):
    """A data file as src/data/dataset.h describes it."""
    with h5py.File(path, "w") as file:
        for split, count, seed in (("train", train, 1), ("test", test, 2)):
            pixels, labels = images(count, seed, size, channels)
            file[f"{split}/images"] = pixels
            file[f"{split}/labels"] = labels
            if split == "train":
                scaled = pixels / 255
                file.attrs["mean"] = np.float32(scaled.mean((0, 1, 2)))
                file.attrs["deviation"] = np.float32(scaled.std((0, 1, 2)))
        file.attrs["classes"] = [f"class {n}" for n in range(10)]
    return path


def write_encoded(path, splits):
    """A data file of encoded images; `splits`: {name: (files, labels)}."""
    with h5py.File(path, "w") as file:
        for split, (files, labels) in splits.items():
            file[f"{split}/labels"] = labels
            file[f"{split}/offsets"] = np.cumsum([0] + [len(data) for data in files])
            file[f"{split}/bytes"] = np.frombuffer(b"".join(files), np.uint8)
        file.attrs["mean"] = file.attrs["deviation"] = np.float32([0.5] * 3)
        file.attrs["classes"] = [f"class {n}" for n in range(10)]
    return path


def text(value):
    """An HDF5 string, fixed-size or not."""
    return value.decode() if isinstance(value, bytes) else str(value)


def read_checkpoint(path):
    """{"attributes": {...}, and of each group in STATE: {name: array}}; groups that are not there are empty"""
    found = {"attributes": {}, **{group: {} for group in STATE}}
    with h5py.File(path, "r") as file:
        found["attributes"] = dict(file.attrs)
        for group in STATE:
            def visit(name, item, group=group):
                if isinstance(item, h5py.Dataset):
                    found[group][name] = item[()]
            if group in file:
                file[group].visititems(visit)
    return found


def edit_checkpoint(path, edit):
    """Changes a checkpoint's HDF5 part and updates its checksum."""
    path = path.resolve()
    path.write_bytes(path.read_bytes()[:-16])
    with h5py.File(path, "r+") as file:
        edit(file)
    content = path.read_bytes()
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    path.write_bytes(content + b"sealed 2" + struct.pack("<Q", xxh3(content, len(content))))


def metrics(out):
    """The records of a run's metrics.jsonl."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class ProgramTest(unittest.TestCase):
    """Gives each test a folder, and each class a data file."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="annulus-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)
        cls.data = write_data(cls.shared / "data.h5")

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.shared))

    def await_file(self, process, file):
        """Waits until a started run has written a file. The run ends with the test."""
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        deadline = time.monotonic() + 30
        while not file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"no {file}\n{finish(process, 1)}")
            time.sleep(0.01)

    def await_checkpoint(self, process, out):
        """Waits until a started run is somewhere after its first checkpoint. The run ends with the test."""
        self.await_file(process, out / "checkpoint.h5")
        time.sleep(0.2)  # to some point between two checkpoints

    def succeed(self, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.status, 0, f"{' '.join(map(str, arguments))}\n{result}")
        return result

    @classmethod
    def training(cls, out, model="mlp", **options):
        """The arguments of a training run; options by their names, global_batch=50."""
        options = {"data": cls.data, "model": model, "epochs": 1, "lr": 0.02, "seed": 7, "threads": 1,
                   "out": out, **options}
        if "global_batch" not in options:
            options.setdefault("batch", 20)
        arguments = ["train"]
        for name, value in options.items():
            if value is None:
                continue
            arguments.append("--" + name.replace("_", "-"))
            if value is not True:
                arguments.append(value)
        return arguments

    def import_texts(self):
        """Returns a data file of eight short texts, of which some are held out."""
        source = self.folder / "texts"
        source.mkdir()
        for number in range(8):
            (source / f"{number}.txt").write_text(f"the {number} green houses are here\n" * 40)
        data = self.folder / "text.h5"
        self.succeed("import", data, source, "--from", "text", "--hold-out", "0.2")
        return data

    def assert_all_refused(self, cases, ranks=2, **options):
        """Training fails for each case: (change of the options, reason)."""
        def train(case):
            number, (change, _) = case
            return run(*self.training(self.folder / f"refused-{number}", **{**options, **change}), ranks=ranks)
        for (_, (change, reason)), result in at_once(train, enumerate(cases)):
            with self.subTest(change=change):
                self.assertNotEqual(result.status, 0, str(result))
                self.assertIn(reason, result.err)

    def train(self, out, ranks=0, model="mlp", environment=None, **options):
        """Trains, and returns results.json."""
        self.succeed(*self.training(out, model, **options), ranks=ranks, environment=environment)
        return json.loads((out / "results.json").read_text())

    def assert_same_state(self, a, b):
        """Asserts that two checkpoints are bit-identical."""
        a, b = read_checkpoint(a), read_checkpoint(b)
        self.assertTrue(a["parameters"] and a["velocity"])
        for group in STATE:
            self.assertEqual(a[group].keys(), b[group].keys())
            for name, values in a[group].items():
                self.assertEqual(values.tobytes(), b[group][name].tobytes(), f"{group}/{name} differs")
        for name in PROGRESS:
            self.assertEqual(a["attributes"].get(name), b["attributes"].get(name), name)

    def farthest(self, a, b):
        """The distance of two checkpoints: the largest |a - b| / |a| over the parameters."""
        a, b = read_checkpoint(a)["parameters"], read_checkpoint(b)["parameters"]
        self.assertTrue(a)
        self.assertEqual(a.keys(), b.keys())
        return max(np.linalg.norm(a[name] - b[name]) / (np.linalg.norm(a[name]) + 1e-30) for name in a)


def main():
    if not os.access(ANNULUS, os.X_OK):
        sys.exit(f"{ANNULUS} not found: build it, or set ANNULUS=...")
    unittest.main()
