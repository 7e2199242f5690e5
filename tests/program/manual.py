"""The commands that the manual shows, and a folder in which a test types them, with smaller sizes."""
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import h5py
import numpy as np
import PIL.Image

import helper
from import_arrays_test import write_idx

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"(?:build/annulus|scripts/[\w-]+|mpirun|sbatch|qsub|bsub|tensorboard|hostname|ulimit|export) ?")
OF_THE_SHELL = re.compile("export |ulimit ")  # also hold for the commands after them

# Not typed, because the command needs:
NOT_TYPED = [
    (r"scripts/(demo|demo-text|test)\b", "the right to install packages, and minutes"),
    (r"scripts/chaos", "minutes"),
    (r"scripts/bench ", "other programs, and minutes"),
    (r"tensorboard ", "TensorBoard"),
    (r"scripts/gpu-check|--gpus|--precision fp16|--tune", "a GPU"),
    (r"sbatch |qsub |bsub |--slurm", "a batch system, see slurm_test.py and batch_test.py"),
    (r"annulus control |--take-over", "another command that still runs, see survive_test.py and take_over_test.py"),
    (r"--model resnet152", "a gigabyte, see pipeline_memory_test.py"),
    (r"predict-scaling step.json --fit", "times between hosts, see predict_scaling_test.py"),
    (r"pip install |torch-venv|src/torch/", "PyTorch, see torch_test.py"),
    (r"^scripts/setup$", "the right to install packages"),
    (r"--from parquet", "pyarrow, see import_arrays_test.py"),
]
# Smaller sizes than the manual's.
SMALLER = [
    (r"-np 16\b", "-np 2"),
    (r"--model resnet50\b", "--model resnet18"),
    (r"--model gpt2 ", "--model gpt-tiny "),
    (r"--length 1024\b", "--length 64"),
    (r"--layers 6 --width 384 --heads 6 --context 512\b", "--layers 1 --width 24 --heads 3 --context 32"),
    (r"train:8192\b", "train:300"),
    (r"\b(224x224|160x160)x3\b", "64x64x3"),
    (r"--image 224\b", "--image 64"),
    (r"--max-steps (\d+)00\b", r"--max-steps \1"),
    (r"-every 500\b", "-every 5"),
    (r"--out run( |$)", r"--metrics-every 2 --out run\1"),
    (r"annulus train (?=.*--model (resnet18|gpt-tiny) )(?!.*--max-steps)", "annulus train --max-steps 2 "),
    (r"--tokens 200\b", "--tokens 20"),
    (r"64MiB\b", "64KiB"),
    (r"annulus bench (step|all-reduce|links|noise|input) ", r"annulus bench \1 --seconds 0.2 "),
    (r"(resnet20 --image 32x32x3 .*)--batch 64\b", r"\1--batch 4"),
    (r"scripts/study --ranks", "scripts/study --even-if-busy --seconds 0.1 --repeat 1 --sizes 4KiB --ranks"),
    (r"(study strategies )(.*)--repeat 2", r"\1--even-if-busy \2--repeat 1 --epochs 1"),
    (r"--shards 64\b", "--shards 2"),
    (r"--hosts HOST1,HOST2 ", ""),
    (r"/usr/share/datasets/fashion-mnist", "mnist"),
    (r"/usr/share/perl", "corpus"),
]
STATUS = {r"checkpoint diff ": (0, 1), r"study compare ": (0, 1, 2)}  # other than 0


def pages():
    """README.md, and the manual's pages in its order."""
    readme = ROOT / "README.md"
    linked = [readme.parent / link for link in re.findall(r"\]\(([\w/]+\.md)\)", readme.read_text())]
    return [readme, *dict.fromkeys(page for page in linked if page.parent.name not in ("results", "tests", "gpu"))]


def commands(page):
    """Yields each command of a page with the commands of the shell before it in the block."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        before = ""
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if OF_THE_SHELL.match(line):
                before += line + "\n"
            elif COMMAND.match(line):
                yield before, line


def not_typed(command):
    """The reason, or nothing."""
    return next((reason for pattern, reason in NOT_TYPED if re.search(pattern, command)), None)


def smaller(command):
    for pattern, replacement in SMALLER:
        command = re.sub(pattern, replacement, command)
    return command


def environment(folder):
    """With an mpirun that fits machines on which other tests run."""
    programs = folder / "programs"
    programs.mkdir()
    mpirun = programs / "mpirun"
    mpirun.write_text(f'#!/bin/sh\nexec {shutil.which(helper.MPIRUN)} --mca mpi_yield_when_idle 1 "$@"\n')
    mpirun.chmod(0o755)
    return {**os.environ, **helper.ENVIRONMENT, "ANNULUS": helper.ANNULUS, "PATH": f"{programs}:{os.environ['PATH']}"}


def type_page(page, folder, variables, left_out="$ "):
    """Types the commands of a page in `folder`. Returns the commands that fail, with their output."""
    failed = []
    for before, command in commands(page):
        if not_typed(command) or re.match(left_out, command):
            continue
        process = subprocess.Popen(["bash", "-c", before + smaller(command)], cwd=folder, env=variables, errors="replace",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        result = helper.finish(process)
        wanted = next((status for pattern, status in STATUS.items() if re.search(pattern, command)), (0,))
        if result.status not in wanted:
            failed.append(f"{page.relative_to(ROOT)}: {command}\n{result}")
    return failed


def picture(path, seed, size=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(path, "JPEG")
    return path


def write_images(folder):
    for number in range(6):
        for name in ("cat", "dog"):
            photo = picture(folder / f"photos/{name}/{number}.jpg", number)
            picture(folder / f"imagenet/train/{name}/{number}.JPEG", number)
            picture(folder / f"imagenet/val/{name}/{number}.JPEG", number)
            (folder / "shards").mkdir(exist_ok=True)
            with tarfile.open(folder / f"shards/{name}.tar", "a") as tar:
                tar.add(photo, f"{number}.jpg")
        picture(folder / f"dogs/train/{number}.jpg", number)
        (folder / "scans").mkdir(exist_ok=True)
        with h5py.File(folder / f"scans/{number}.h5", "w") as file:
            file["image"], file["label"] = helper.images(1, number)[0][0], number % 2
    (folder / "dogs/labels.csv").write_text("id,breed\n" + "".join(f"{n},{('pug', 'boxer')[n % 2]}\n" for n in range(6)))
    picture(folder / "cat.jpg", 1)


def write_arrays(folder):
    (folder / "arrays").mkdir()
    (folder / "ages").mkdir()
    pixels, labels = helper.images(60, 1)
    np.save(folder / "arrays/X.npy", pixels.astype(np.float32)[..., 0] / 255)
    np.save(folder / "arrays/y.npy", labels)
    for split in ("train", "test"):
        np.save(folder / f"ages/{split}_images.npy", pixels)
        np.save(folder / f"ages/{split}_labels.npy", labels.astype(np.float32) / 10)
    write_idx(folder / "mnist", (pixels[..., 0], labels), (pixels[..., 0], labels), compress=True)
    (folder / "cifar-10-batches-bin").mkdir()
    rows = np.random.default_rng(1).integers(0, 10, (20, 1 + 3072), dtype=np.uint8).tobytes()
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / f"cifar-10-batches-bin/{name}.bin").write_bytes(rows)
    (folder / "cifar-10-batches-bin/batches.meta.txt").write_text("".join(f"class {n}\n" for n in range(10)))


def write_texts(folder):
    (folder / "corpus").mkdir()
    (folder / "gpt2").mkdir()
    for number in range(8):
        (folder / f"corpus/{number}.txt").write_text(f"sub number{number} {{ return {number}; }}\n" * 60)
    (folder / "book.txt").write_text("It was a bright cold day in April.\n" * 60)
    (folder / "more.txt.gz").write_bytes(gzip.compress(b"And the clocks were striking thirteen.\n" * 60))

    def spelled(byte):
        shift = 0x100 if byte <= 0x20 else 0x121 - 0x7f if 0x7f <= byte <= 0xa0 else 0x143 - 0xad if byte == 0xad else 0
        return chr(byte + shift)
    tokens = {spelled(byte): byte for byte in range(256)} | {"<|endoftext|>": 256}
    (folder / "gpt2/encoder.json").write_text(json.dumps(tokens))
    (folder / "gpt2/vocab.bpe").write_text("#version: 0.2\n")


def prepare(folder):
    """What the manual's reader has: the demo's data, and files of their own."""
    (folder / "build").mkdir(parents=True)
    (folder / "build/annulus").symlink_to(helper.ANNULUS)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    data = helper.write_data(folder / "build/fashion.h5")
    shutil.copy(data, folder / "data.h5")
    write_images(folder)
    write_arrays(folder)
    write_texts(folder)
    run(["import", folder / "photos.h5", folder / "photos", "--hold-out", 0.2])
    write_weights(folder, "net.onnx", data, "lenet")


def prepare_pages(folder):
    """What pages beside README.md need besides."""
    run(["import", folder / "imagenet-0.h5", folder / "imagenet"])
    run(["import", folder / "text.h5", folder / "corpus", "--hold-out", 0.1, "--tokenizer", f"gpt2:{folder}/gpt2"])
    write_weights(folder, "resnet50.safetensors", folder / "photos.h5", "resnet18")
    write_weights(folder, "gpt2.onnx", folder / "build/text.h5", "gpt-tiny", "--length", 128)
    write_weights(folder, "gpt2.safetensors", folder / "text.h5", "gpt-tiny", "--length", 64)


def run(arguments):
    result = helper.run(*arguments)
    assert result.status == 0, result


def write_weights(folder, name, data, model, *more):
    trained = folder / f"trained-{name}"
    run(["train", "--data", data, "--model", model, "--max-steps", 1, "--out", trained, "--metrics", "none", *more])
    run(["export", folder / name, "--checkpoint", trained])
    shutil.rmtree(trained)
