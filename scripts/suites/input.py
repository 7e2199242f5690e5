"""Input pipeline: images/s per core against PyTorch's DataLoader with torchvision, and reading against memcpy.

  scripts/bench input [--images 400] [--seconds 4] [--rounds 5] [--check]

Generated JPEG images like ImageNet's (scripts/peers/jpeg_set.py) are randomly cropped, resized to 224x224 and randomly
flipped: by annulus bench input, and by torchvision as in PyTorch's ImageNet example. Each uses one core, and results
are images per second of CPU time. Decoded images, small and large, are read from files, and compared with copying them
in memory. Programs alternate, because a machine's speed drifts; medians. Prints Markdown tables. With --check it exits
with 1 if a target is missed: 1.2 times PyTorch's speed, and 90 % of memcpy's.
"""
import json
import os
import statistics
import subprocess

from benchmark import ROOT, give_up, number, random_images, run_annulus, say, table

RAW = {(28, 28, 1): 60000, (32, 32, 3): 50000, (64, 64, 3): 12000, (224, 224, 3): 2000}  # larger than the caches
TARGET_JPEG, TARGET_RAW = 1.2, 0.9
LIMIT = 600


def name_of(shape):
    return "x".join(map(str, shape))


def annulus(data, seconds):
    found, failure = run_annulus([], ["input", "--data", data, "--workers", 1, "--seconds", seconds], LIMIT)
    return found if not failure else give_up(f"annulus bench input: {failure}")


def peer(name, *arguments):
    """The output of a program in scripts/peers/."""
    ended = subprocess.run([ROOT / "scripts/peers" / name, *map(str, arguments)], capture_output=True, text=True)
    return ended.stdout if ended.returncode == 0 else give_up(f"{name} failed\n{ended.stdout}{ended.stderr}")


def jpegs_in(folder):
    """Creates the files once, under another name until they are complete."""
    if not folder.exists():
        part = folder.with_name(f"part-{folder.name}")
        say(peer("jpeg_set.py", part, folder.name.removeprefix("jpeg-")).strip())
        part.rename(folder)
    return folder


def leave_to_disk(path):
    """Drops the file from the page cache, because cached pages would keep the small size of the writes."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def add_options(parser):
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)


def check_options(*_):
    return []


def measure(options):
    """Speeds of JPEG images, of ours and PyTorch's, the rows by shape of raw images, and PyTorch's version."""
    jpegs = jpegs_in(options.out / f"jpeg-{options.images}")
    files = {shape: random_images(options.out / f"raw-{name_of(shape)}.h5", {"train": count}, shape, classes=2)
             for shape, count in RAW.items()}
    for path in files.values():
        leave_to_disk(path)
    ours, theirs, raw, version = [], [], {shape: [] for shape in RAW}, ""
    for count in range(1, options.rounds + 1):
        say(f"round {count} of {options.rounds}")
        ours.append(annulus(jpegs / "data.h5", options.seconds)["images_per_processor_second"])
        row = json.loads(peer("torch_input.py", jpegs / "images", "--workers", 0, "--seconds",
                              options.seconds).splitlines()[-1])
        theirs.append(row["images_per_processor_second"])
        version = row["version"]
        for shape, rows in raw.items():
            rows.append(annulus(files[shape], options.seconds))
    return ours, theirs, raw, version


def main(options):
    ours, theirs, raw, version = measure(options)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"Images per second of one core, medians of {options.rounds} rounds in turns (PyTorch {version}).\n")
    print(table(["images", "Annulus", "PyTorch", "ratio", "Annulus, range", "PyTorch, range"],
                [["JPEG, 500x375 to 224x224", number(statistics.median(ours)), number(statistics.median(theirs)),
                  f"{ratio:.2f}", f"{number(min(ours))} to {number(max(ours))}",
                  f"{number(min(theirs))} to {number(max(theirs))}"]]))
    print("\nReading decoded images, compared with copying them in memory.\n")
    shares = {shape: [row["share_of_copying"] for row in rows] for shape, rows in raw.items()}
    print(table(["images", "images/s", "share of copying's speed", "range"],
                [[name_of(shape), number(statistics.median(row["images_per_second"] for row in raw[shape])),
                  f"{statistics.median(found):.0%}", f"{min(found):.0%} to {max(found):.0%}"]
                 for shape, found in shares.items()]))
    return [("JPEG", "times PyTorch's speed", ratio, "at least", TARGET_JPEG),
            *((name_of(shape), "of copying's speed", statistics.median(found), "at least", TARGET_RAW)
              for shape, found in shares.items())]
