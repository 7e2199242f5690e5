"""Hands images to `annulus import`, as WebDataset's archives, for formats and options that only it has."""
import io
import itertools
import json
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib

from importers.checksums import expect_replaceable
from importers.source import Refused

ARCHIVE_SAMPLES = 1000  # a piece of work for a rank
LAUNCH = pathlib.Path(__file__).resolve().parents[1] / "launch"


def png(image):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, channels = image.shape
    header = struct.pack(">2I5B", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


class Rate:
    """Shows the samples read until now, each second on a terminal, and at the end."""

    def __init__(self):
        self.begin = self.shown = time.monotonic()
        self.samples = self.bytes = 0

    def text(self):
        seconds = max(time.monotonic() - self.begin, 1e-3)
        return f"{self.samples} images read, {self.samples / seconds:.0f} images/s  {self.bytes / 1e6 / seconds:.1f} MB/s"

    def add(self, size):
        self.samples, self.bytes = self.samples + 1, self.bytes + size
        if sys.stderr.isatty() and time.monotonic() > self.shown + 1:
            self.shown = time.monotonic()
            print(f"\r{self.text()}", end="", file=sys.stderr, flush=True)

    def end(self):
        print("\r" * sys.stderr.isatty() + self.text(), file=sys.stderr, flush=True)


class Archives:
    """The archives of an import, made again only if files have changed since an interrupted import."""

    def __init__(self, folder, samples, fails):
        self.folder, self.samples, self.fails = folder, samples, fails
        self.rate = Rate()
        self.places = {}  # of each archive: the batch, and problems by the samples' numbers

    def write(self):
        for split, batches in self.samples.splits.items():
            for batch in batches:
                self.write_batch(self.folder / split, batch)
            if not any(pathlib.Path(place).parent == self.folder / split for place in self.places):
                raise Refused(f"{batches[0].files[0]}: has no images, nor have other files of {split} images")
        for old in self.folder.rglob("*.tar"):  # of files that an interrupted import had
            if str(old) not in self.places:
                old.unlink()
        self.rate.end()

    def write_batch(self, folder, batch):
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{batch.name}.note"
        facts = [[str(path), path.stat().st_size, path.stat().st_mtime_ns, *self.samples.columns, self.samples.by_name, self.fails]
                 for path in batch.files]
        try:
            known = json.loads(note.read_text())
        except (OSError, ValueError):
            known = {}
        if not facts or known.get("files") != facts:
            problems = self.write_samples(folder, batch)
            note.write_text(json.dumps({"files": facts, "problems": problems}))
            known = {"problems": problems}
        self.places |= {str(folder / f"{batch.name}-{begin:09}.tar"): (batch, problems)
                        for begin, problems in known["problems"]}

    def write_samples(self, folder, batch):
        """Returns, for each archive, the number of its first sample and the problems of its samples."""
        samples, found = enumerate(batch.read()), []
        while piece := list(itertools.islice(samples, 1)):
            begin, problems = piece[0][0], {}
            with tarfile.open(folder / f"{batch.name}-{begin:09}.tar", "w", format=tarfile.GNU_FORMAT) as archive:
                for number, sample in itertools.chain(piece, itertools.islice(samples, ARCHIVE_SAMPLES - 1)):
                    if sample.problem and self.fails:
                        raise Refused(f"{batch.place(number)}: {sample.problem}")
                    if sample.problem:
                        problems[str(number)] = sample.problem
                    self.add(archive, number, sample)
            found.append((begin, problems))
        return found

    def add(self, archive, number, sample):
        label = "" if sample.label is None else str(sample.label)
        ending = "png" if sample.image.startswith(b"\x89PNG") else "jpg"
        beside = ("json", json.dumps({"label": label}).encode()) if self.samples.by_name else ("cls", label.encode())
        for name, content in ((ending, b"" if sample.problem else sample.image), beside):
            member = tarfile.TarInfo(f"{number}.{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        self.rate.add(len(sample.image))

    def name_skipped(self, listed):
        """Names the source's samples in the list of those that were skipped."""
        lines = []
        for line in listed.read_text().splitlines():
            name, _, reason = line.partition("\t")
            archive, _, number = name.rpartition(": ")
            if archive in self.places:
                batch, problems = self.places[archive]
                name, reason = batch.place(int(number)), problems.get(number, reason)
            lines.append(f"{name}\t{reason}\n")
        listed.write_text("".join(lines))


def run(command):
    """Returns the exit status. Ctrl-C reaches the command by itself."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    process = subprocess.Popen(command)
    terminated = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminated)


def hand_over(program, path, samples, further, options):
    """Returns the exit status of `annulus import` with the options `further`. Raises Refused."""
    expect_replaceable(path, options.overwrite)  # before the archives take a while
    if not path.parent.is_dir():
        raise Refused(f"{path.parent}: no such folder")
    if not shutil.which(program):
        raise Refused(f"{program}: no such program; run scripts/build, or set the variable ANNULUS")
    # The same name each time, so that a rerun continues where an interrupted import has left parts.
    name = path.parent / f".{path.name}.annulus-images"
    archives = Archives(name / "archives", samples, options.on_bad_sample == "fail")
    interrupted = False
    try:
        archives.write()
        if classes := options.classes or samples.classes:
            pathlib.Path(name, "classes.txt").write_text("".join(f"{line}\n" for line in classes))
            further += ["--classes-from", name / "classes.txt"]
        for option, values in (("--mean", options.mean), ("--std", options.std)):
            further += [option, ",".join(map(str, values))] if values else []
        launch = [LAUNCH, "-np", options.ranks] if options.ranks else []
        status = run([*launch, program, "import", path, archives.folder, "--from", "tar", "--hold-out", str(options.hold_out),
                      *(["--overwrite"] if options.overwrite else []), *further])
        if (listed := path.with_name(f"{path.name}.skipped.txt")).exists():
            archives.name_skipped(listed)
        return status
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if not interrupted and not path.with_name(f"{path.name}.parts").exists():
            shutil.rmtree(name, ignore_errors=True)
