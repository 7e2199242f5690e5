#!/usr/bin/python3
"""Writes a run of annulus train as an MLPerf training log of the open division, from RUN/results.json.

  scripts/formats/mllog.py run --benchmark resnet --org us --platform "2 EPYC" --train-samples 60000 > result_0.txt
  python3 -m mlperf_logging.compliance_checker --usage training --ruleset 4.0.0 result_0.txt

A run that reached --until has the status success, another one aborted. Times are those of the run: start-up is the
initialization, and each epoch is followed by the evaluations of the epoch."""
import argparse
import datetime
import json
import pathlib
import sys

STATUSES = ["onprem", "cloud", "preview", "research"]


class Log:
    def __init__(self, out, start):
        self.out, self.now = out, start  # seconds since 1970

    def event(self, key, value=None, kind="POINT_IN_TIME", **metadata):
        print(":::MLLOG " + json.dumps({"namespace": "", "time_ms": round(1e3 * self.now), "event_type": kind, "key": key,
                                        "value": value, "metadata": metadata}), file=self.out)

    def interval(self, name, seconds, **metadata):
        self.event(f"{name}_start", kind="INTERVAL_START", **metadata)
        self.now += seconds
        self.event(f"{name}_stop", kind="INTERVAL_END", **metadata)


def score_of(evaluation):
    """The accuracy on the evaluated images, or the first other measure."""
    scores = {name: value for name, value in evaluation.items() if name.startswith(("test_", "validation_"))}
    return next((value for name, value in scores.items() if name.endswith("_accuracy")), next(iter(scores.values()), None))


def write(results, log, options):
    epochs, evaluations = results["epochs"], results["evaluations"]
    for key, value in (("submission_benchmark", options.benchmark), ("submission_org", options.org),
                       ("submission_division", "open"), ("submission_status", options.status),
                       ("submission_platform", options.platform)):
        log.event(key, value)
    log.event("cache_clear", True)
    log.interval("init", results["startup_seconds"])
    log.event("global_batch_size", results["global_batch"])
    log.event("train_samples", options.train_samples)
    log.event("eval_samples", evaluations[-1]["images"])
    log.event("run_start", kind="INTERVAL_START")
    for epoch in epochs:
        number = epoch["epoch"]
        log.interval("epoch", epoch["seconds"], epoch_num=number)
        for evaluation in (found for found in evaluations if found["epoch"] == number):
            log.interval("eval", evaluation["seconds"], epoch_num=number)
            log.event("eval_accuracy", score_of(evaluation), epoch_num=number)
    log.event("run_stop", kind="INTERVAL_END", status="success" if results.get("ended_by", "").startswith("--until") else "aborted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="the run's folder")
    parser.add_argument("--benchmark", required=True, help="MLPerf's name, such as resnet")
    parser.add_argument("--org", required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--train-samples", type=int, required=True, help="in the data file")
    parser.add_argument("--status", choices=STATUSES, default="onprem")
    options = parser.parse_args()
    try:
        results = json.loads((options.run / "results.json").read_text())
        began = datetime.datetime.fromisoformat(results["began"].replace("Z", "+00:00")).timestamp()
        if not results["epochs"] or not results["evaluations"]:
            raise ValueError("the run has no evaluation")
        write(results, Log(sys.stdout, began), options)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"mllog.py: {options.run}: no results of a training with evaluations: {error}")


if __name__ == "__main__":
    main()
