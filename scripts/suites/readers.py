"""Readers of data: time and memory of an import in each form that people have.

  scripts/bench readers [--images 2000] [--arrays 10000] [--only FORM,...]

Generated JPEG images like ImageNet's (scripts/peers/jpeg_set.py) lie in folders, beside a table, in archives and in
Parquet files; ten of them are damaged, or labels that no class has among arrays, and must be listed. Prints a Markdown
table: seconds of the whole command on one rank, and the most memory of a process of it. Parquet files need pyarrow
(scripts/setup --parquet).
"""
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import time

from benchmark import ANNULUS, ROOT, number, say, table, words
from suites.input import jpegs_in

BAD, CLASSES, DISTINCT = 10, 10, 200
PYARROW = ROOT / "build/peers/pyarrow/bin/python"
# Runs a command and prints the most KiB of memory of a process of it. A process of its own, because the command would count the
# memory of the process that starts it.
PEAK = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""
TO_PARQUET = """
import json, pathlib, sys, pyarrow as pa, pyarrow.parquet as pq
folder, paths = json.load(sys.stdin)
for part in range(2):
    rows = [{"image": {"bytes": pathlib.Path(path).read_bytes(), "path": None}, "label": label} for path, label in paths[part::2]]
    pq.write_table(pa.Table.from_pylist(rows), f"{folder}/train-0000{part}-of-00002.parquet", row_group_size=100)
"""


def bad_of(count):
    """The numbers of the bad ones among `count` samples."""
    return [i * count // BAD for i in range(BAD)]


class Jpegs:
    """Files of which some are damaged, with labels."""

    def __init__(self, out, count):
        whole = [path.read_bytes() for path in sorted(jpegs_in(out / f"jpeg-{DISTINCT}").glob("images/*/*.jpg"))]
        bad = set(bad_of(count))
        self.content = [whole[i % DISTINCT][:-5000 if i in bad else None] for i in range(count)]
        self.labels = [i % CLASSES for i in range(count)]

    def folder(self, place):
        for i, (image, label) in enumerate(zip(self.content, self.labels)):
            path = place / f"class{label}" / f"{i:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        return []

    def beside_table(self, place):
        for i, image in enumerate(self.content):
            (place / f"{i:06}.jpg").write_bytes(image)
        rows = [f"{i:06},class{label}" for i, label in enumerate(self.labels)]
        (place / "labels.csv").write_text("\n".join(["id,label", *rows]))
        return ["--labels", place / "labels.csv"]

    def metadata(self, place):
        self.beside_table(place)
        rows = [{"file_name": f"{i:06}.jpg", "label": f"class{label}"} for i, label in enumerate(self.labels)]
        (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return []

    def archives(self, place, field, text):
        for shard in range(2):
            with tarfile.open(place / f"shard-{shard:06}.tar", "w") as archive:
                for i in range(shard, len(self.content), 2):
                    for ending, content in (("jpg", self.content[i]), (field, text(self.labels[i]).encode())):
                        member = tarfile.TarInfo(f"{i:06}.{ending}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
        return []

    def parquet(self, place):
        self.folder(place / "files")
        paths = [[str(place / "files" / f"class{label}" / f"{i:06}.jpg"), label] for i, label in enumerate(self.labels)]
        subprocess.run([PYARROW, "-c", TO_PARQUET], input=json.dumps([str(place), paths]), text=True, check=True)
        shutil.rmtree(place / "files")
        return []


class Arrays:
    """Random pixels, with labels of which some have no class."""

    def __init__(self, count, shape):
        import numpy
        random = numpy.random.default_rng(1)
        self.pixels = random.integers(0, 256, (count, *shape), dtype=numpy.uint8)
        self.labels = (numpy.arange(count) % CLASSES).astype(numpy.int64)

    def idx(self, place):
        for name in ("train", "t10k"):
            header = struct.pack(">4i", 2051, *self.pixels.shape[:3])
            (place / f"{name}-images-idx3-ubyte").write_bytes(header + self.pixels.tobytes())
            labels = struct.pack(">2i", 2049, len(self.labels)) + self.labels.astype("u1").tobytes()
            (place / f"{name}-labels-idx1-ubyte").write_bytes(labels)
        return []

    def cifar(self, place):
        planes = self.pixels.transpose(0, 3, 1, 2)
        records = b"".join(bytes([label]) + own.tobytes() for label, own in zip(self.labels, planes))
        for name in ("data_batch_1.bin", "test_batch.bin"):
            (place / name).write_bytes(records)
        (place / "batches.meta.txt").write_text("".join(f"class{i}\n" for i in range(CLASSES)))
        return []

    def npy(self, place, pixels=None, bad=False):
        import numpy
        labels = self.labels.copy()
        labels[bad_of(len(labels))] = -1 if bad else 0
        numpy.save(place / "X.npy", self.pixels if pixels is None else pixels)
        numpy.save(place / "y.npy", labels)
        return ["--on-bad-sample", "skip"] if bad else []

    def floats(self, place):
        return self.npy(place, (self.pixels / 255).astype("float32").transpose(0, 3, 1, 2))

    def hdf5(self, place):
        import h5py
        with h5py.File(place / "all.h5", "w") as file:
            file["X"], file["y"] = self.pixels, self.labels
        return []

    def hdf5_files(self, place):
        import h5py
        bad = set(bad_of(len(self.labels)))
        for i, (pixels, label) in enumerate(zip(self.pixels, self.labels)):
            with h5py.File(place / f"{i:06}.h5", "w") as file:
                file["image"] = pixels
                if i not in bad:
                    file["label"] = label
        return []


def forms(options):
    """By name: the program, what makes the source in a folder and returns options, the number of samples, and of bad ones."""
    script = ROOT / "scripts/import-arrays"
    jpegs = Jpegs(options.out, options.images)
    idx, small, arrays = Arrays(60_000, (28, 28)), Arrays(50_000, (32, 32, 3)), Arrays(options.arrays, (64, 64, 3))
    images, count = options.images, options.arrays
    return {
        "idx": (script, idx.idx, 120_000, 0), "cifar": (script, small.cifar, 100_000, 0),
        "npy, uint8": (script, arrays.npy, count, 0), "npy, float32": (script, arrays.floats, count, 0),
        "npy, --on-bad-sample skip": (script, lambda place: arrays.npy(place, bad=True), count, BAD),
        "hdf5, one file": (script, arrays.hdf5, count, 0), "hdf5, an image a file": (script, arrays.hdf5_files, count, BAD),
        "folder": (ANNULUS, jpegs.folder, images, BAD), "folder, --labels": (ANNULUS, jpegs.beside_table, images, BAD),
        "folder, metadata.jsonl": (ANNULUS, jpegs.metadata, images, BAD),
        "tar, KEY.cls": (ANNULUS, lambda place: jpegs.archives(place, "cls", str), images, BAD),
        "tar, KEY.json": (ANNULUS, lambda place: jpegs.archives(place, "json", lambda label: json.dumps({"label": label})), images, BAD),
        **({"parquet": (script, jpegs.parquet, images, BAD)} if PYARROW.exists() else {})}


def add_options(parser):
    parser.add_argument("--images", type=int, default=2000, help="JPEG images")
    parser.add_argument("--arrays", type=int, default=10_000, help="images of 64x64x3 in arrays")
    parser.add_argument("--only", type=words, help="forms, as the table names them without what follows a comma")


def check_options(*_):
    return None


def measure(program, source, output, options):
    """Seconds, and the most bytes of memory."""
    command = [program, *(["import"] if program == ANNULUS else []), output, source, *options]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PEAK, *map(str, command)], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr}")
    return time.monotonic() - begin, 1024 * int(done.stdout)


def main(options):
    rows = []
    for name, (program, make, samples, bad) in forms(options).items():
        if options.only and name.split(",")[0] not in options.only:
            continue
        say(name)
        place, output = options.out / "source", options.out / "imported.h5"
        listed = pathlib.Path(f"{output}.skipped.txt")
        for old in (output, listed):
            old.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        more = make(place)
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        seconds, memory = measure(program, place, output, more)
        skipped = len(listed.read_text().splitlines()) if listed.exists() else 0
        rows.append([name, f"{program.name}{' import' if program == ANNULUS else ''}", f"{samples:,}", number(size / 1e6),
                     f"{seconds:.1f}", number(samples / seconds), number(memory / 1e6), f"{skipped} of {bad}" if bad else ""])
        shutil.rmtree(place)
    print(table(["form", "program", "samples", "MB", "seconds", "samples/s", "memory, MB", "bad samples listed"], rows))
    return []
