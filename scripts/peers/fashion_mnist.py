"""Fashion-MNIST from Debian's package, for benchmarks, and other frameworks' trainings on it."""
import pathlib
import subprocess
import time

from benchmark import ROOT, give_up, run
from step_peers import start_ranks

IMAGES = 60000
IMPORT_LIMIT, TRAINING_LIMIT = 600, 1800  # seconds


def idx_folder():
    """Returns the folder with its IDX files."""
    listing = subprocess.run(["dpkg", "-L", "dataset-fashion-mnist"], capture_output=True, text=True).stdout
    for line in listing.splitlines():
        if "/train-images-idx3-ubyte" in line:
            return pathlib.Path(line).parent
    give_up("Fashion-MNIST not found: install the package dataset-fashion-mnist")


def data_file(folder):
    """Returns the data file in `folder`, imported if it is not there."""
    data = folder / "fashion.h5"
    if not data.exists():
        _, failure = run([ROOT / "scripts/import-arrays", data, idx_folder(), "--from", "idx"], IMPORT_LIMIT)
        if failure:
            give_up(f"import-arrays: {failure}")
    return data


def peer_epochs(peer, ranks, threads, settings, **options):
    """Returns what torch_training.py or tensorflow_training.py reports of each epoch. `peer`: torch or tensorflow;
    `options`: the program's batch, epochs, lr and seed. Raises Failed.
    """
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    started = start_ranks(peer, f"{peer}_training.py", [idx_folder(), *arguments], ranks, threads, settings)
    end = time.monotonic() + TRAINING_LIMIT
    try:
        return [started[0].answer(end) for _ in range(options["epochs"])]
    finally:
        for rank in started:
            rank.close()
