"""A pipeline of two stages beside torch.distributed.pipelining: images/s and memory of ResNet-50, on two cores.

  scripts/bench pipeline [--rounds 5] [--out build/bench-pipeline] [--check]

Images of 64 x 64, 64 in a step, in 8 micro-batches; SGD with momentum 0.9; one thread a stage. Both run the schedule 1F1B.
Annulus cuts the network where it has measured that both stages take as long; of PyTorch the fastest of several cuts is
taken, with and without torch.compile. For comparison Annulus also trains on one rank of one thread, with the same
micro-batches. All alternate. Prints a table of medians, and writes it to pipeline.md. With --check it exits with 1 if
Annulus is slower or needs more memory, or reaches less than 0.92 of the schedule's bound.
"""
import contextlib
import json
import os
import shutil
import statistics

from benchmark import ANNULUS, MIB, give_up, number, pinned_mpirun, random_images, run, say, table, times, write
from step_peers import Failed, Running

STAGES, BATCH, MICRO_BATCHES = 2, 64, 8
BOUND = STAGES * MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)  # times the speed of one rank
STEPS, WARM_UP, LIMIT = 10, 3, 600
CUTS = (9, 10, 11, 12, 13, 14)  # of 16 blocks
TRIAL_SECONDS = 4
ONE, PIPELINE, PEER = "Annulus, 1 rank", "Annulus, 2 stages", "PyTorch, 2 stages"


def data_file(folder):
    """Random images of ten classes, in the batches of a training."""
    return random_images(folder / "images.h5", {"train": STEPS * BATCH, "test": BATCH}, (64, 64, 3), classes=10)


def train(ranks, options):
    """Returns images/s, from the median step, and the largest rank's memory."""
    out = options.out / "run"
    shutil.rmtree(out, ignore_errors=True)
    _, failure = run([*pinned_mpirun(ranks, 1), ANNULUS, "train", "--data", data_file(options.out), "--model", "resnet50",
                      "--global-batch", BATCH, "--accumulate", MICRO_BATCHES, "--pipeline", ranks, "--threads", 1,
                      "--lr", 0.01, "--max-steps", STEPS, "--eval-steps", 1, "--metrics-every", 1, "--out", out], LIMIT)
    if failure:
        give_up(failure)
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    seconds = [record["step_seconds"] for record in records if record["kind"] == "train"][WARM_UP:]
    return BATCH / statistics.median(seconds), max(json.loads((out / "results.json").read_text())["peak_memory_bytes"])


def fastest_peer():
    """Returns PyTorch's ranks with its fastest settings, ready to be measured, and the settings."""
    best, speed = None, 0
    for compiler in ("eager", "compiled"):
        for cut in CUTS if best is None else [best[1].split(",")[0].removeprefix("cut ")]:
            settings = (f"cut {cut}", "channels last", compiler)
            try:
                running = Running("torch", "resnet50", BATCH // STAGES, STAGES, 1, settings, "torch_pipeline.py")
            except Failed as error:
                say(f"PyTorch, {', '.join(settings)}: {error}")
                continue
            found = running.measure(TRIAL_SECONDS)["images_per_second"]
            say(f"PyTorch {running.version}, {', '.join(settings)}: {number(found)} images/s")
            slower = running
            if found > speed:
                slower, best, speed = best and best[0], (running, ", ".join(settings)), found
            if slower:
                slower.close()
    return best


def measure(options):
    """Returns the rows (images/s, bytes) of each program, and PyTorch's settings."""
    rows, settings = {}, ""
    with contextlib.ExitStack() as ended:
        programs = {ONE: lambda: train(1, options), PIPELINE: lambda: train(STAGES, options)}
        if peer := fastest_peer():
            running, settings = peer
            ended.callback(running.close)

            def of_peer():
                found = running.measure(TRIAL_SECONDS)
                return found["images_per_second"], found["peak_memory_bytes"]
            programs[PEER] = of_peer
        else:
            say("PyTorch is SKIPPED")
        for count in range(1, options.rounds + 1):
            for name, program in programs.items():
                rows.setdefault(name, []).append(program())
            say(f"round {count} of {options.rounds}, images/s: "
                + ", ".join(f"{name} {number(row[-1][0])}" for name, row in rows.items()))
    return rows, settings


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=5)


def check_options(parser, _):
    if len(os.sched_getaffinity(0)) < STAGES:
        parser.error(f"{STAGES} stages need {STAGES} cores")
    return ["torch"]


def main(options):
    rows, settings = measure(options)
    speed, memory = ({name: statistics.median(row[i] for row in found) for name, found in rows.items()} for i in (0, 1))
    text = table(["program", "images/s", "times one rank", "memory of a rank"],
                 [[f"{name} ({settings})" if name == PEER else name, number(speed[name]), times(speed[name] / speed[ONE]),
                   f"{memory[name] / MIB:.0f} MiB"] for name in rows])
    print(text)
    write(options.out / "pipeline.md", text + "\n")
    both = PEER in rows
    return [(PIPELINE, "of the schedule's bound", speed[PIPELINE] / speed[ONE] / BOUND, "at least", 0.92),
            (PIPELINE, f"times the speed of {PEER}", both and speed[PIPELINE] / speed[PEER] or None, "at least", 1),
            (PIPELINE, f"times the memory of {PEER}", both and memory[PIPELINE] / memory[PEER] or None, "at most", 1)]
