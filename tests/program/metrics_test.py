"""Metrics during a run: JSON lines, CSV, TensorBoard events."""
import csv
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import struct
import subprocess
import unittest

import numpy as np

import helper

PLOT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "plot"
FORMATS = "tensorboard,jsonl,csv"
PARTS = ["input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"]


def crc32c(data):
    """CRC32C by definition, bit by bit: the reflected polynomial 82f63b78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tf_records(data):
    """The records of a TFRecord file, whose checksums must be right."""
    def check(content, checksum):
        crc = crc32c(content)
        rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
        assert struct.unpack("<I", checksum)[0] == (rotated + 0xA282EAD8) & 0xFFFFFFFF

    while data:
        length = struct.unpack("<Q", data[:8])[0]
        check(data[:8], data[8:12])
        record, data = data[12:12 + length], data[12 + length:]
        check(record, data[:4])
        yield record
        data = data[4:]


def fields(message):
    """(number, value) of each field of a protobuf message: int, float or bytes."""
    def varint():
        nonlocal message
        value = shift = 0
        while True:
            byte, message = message[0], message[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while message:
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}.get(key & 7) or (varint(), None)
            value, message = message[:size], message[size:]
            value = struct.unpack(form, value)[0] if form else value
        yield key >> 3, value


def scalars(folder):
    """{tag: {step: value}} of all event files, as TensorBoard shows them; duplicate steps are an error."""
    found = {}
    for file in sorted(folder.iterdir()):
        events = [dict(fields(record)) for record in tf_records(file.read_bytes())]
        assert events[0][3] == b"brain.Event:2"
        for event in events:
            assert event[1] > 1.7e9  # the wall time
            if 7 in event:  # the run resumes at this step
                assert dict(fields(event[7])) == {1: 1}
                for steps in found.values():
                    for step in [step for step in steps if step >= event[2]]:
                        del steps[step]
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                steps = found.setdefault(value[1].decode(), {})
                assert event[2] not in steps, f"step {event[2]} twice"
                steps[event[2]] = value[2]
    return found


def of_kind(records, kind):
    return {record["step"]: record for record in records if record["kind"] == kind}


class Metrics(helper.ProgramTest):
    STEPS = {"global_batch": 50, "epochs": 2}  # ten an epoch

    def check_all_say_the_same(self, out, steps):
        records = helper.metrics(out)
        self.assertEqual([record["step"] for record in records if record["kind"] == "train"], steps)
        self.assertEqual([record["step"] for record in records if record["kind"] == "test"], [10, 20])
        with open(out / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), len(records))
        shown = scalars(out / "tensorboard")
        for record, row in zip(records, rows):
            values = dict(record)
            self.assertEqual((int(row["step"]), row["kind"]), (values.pop("step"), values.pop("kind")))
            self.assertEqual({name for name, value in row.items() if value}, set(record))
            for name, value in values.items():
                self.assertEqual(float(row[name]), value, name)
                if name not in ("epoch", "time"):
                    self.assertEqual(shown[f"{record['kind']}/{name}"].pop(record["step"]), np.float32(value), name)
        self.assertFalse(any(shown.values()), f"TensorBoard shows more: {shown}")

    def test_a_killed_and_resumed_run_logs_each_step_once(self):
        options = {"metrics": FORMATS, "metrics_every": 3, "checkpoint_every": 13, **self.STEPS}
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, ranks=2, **options)
        result = helper.run(*self.training(parts, inject="kill:rank=1,step=17", **options), ranks=2)
        self.assertNotEqual(result.status, 0, str(result))
        self.assertEqual(list(of_kind(helper.metrics(parts), "train")), [3, 6, 9, 12, 15])
        self.train(parts, ranks=2, resume=True, **options)
        for out in (whole, parts):
            self.check_all_say_the_same(out, [3, 6, 9, 12, 15, 18])
        for kind in ("train", "test", "epoch"):
            runs = [of_kind(helper.metrics(out), kind) for out in (whole, parts)]
            for step, record in runs[0].items():
                for name in ("loss", "accuracy", "gradient_norm", "learning_rate"):
                    if kind != "epoch" or name == "learning_rate":  # the steps of an epoch's last run are fewer
                        self.assertEqual(record.get(name), runs[1][step].get(name), f"{kind} {step} {name}")

    def test_values(self):
        out = self.folder / "out"
        results = self.train(out, ranks=3, metrics="jsonl", metrics_every=4, model="lenet", **self.STEPS)
        records, peak = helper.metrics(out), results["peak_flops_per_second"]
        costs = self.folder / "costs.json"
        self.succeed("models", "--model", "lenet", "--json", costs)
        flops = json.loads(costs.read_text())["models"]["training_flops"]
        self.assertAlmostEqual(results["train_mfu"] / (flops * results["train_images_per_second"] / peak), 1)
        for step, record in of_kind(records, "train").items():
            self.assertAlmostEqual(record["epoch"], step / 10)
            self.assertAlmostEqual(record["learning_rate"], 0.02)
            self.assertAlmostEqual(sum(record[f"{part}_seconds"] for part in PARTS), record["step_seconds"], places=9)
            self.assertAlmostEqual(record["images_per_second"] * record["step_seconds"], 50)
            self.assertAlmostEqual(record["mfu"] / (flops * record["images_per_second"] / peak), 1)
            self.assertTrue(0 < record["mfu"] < 1.05, record["mfu"])
        for number, (test, epoch) in enumerate(zip(of_kind(records, "test").values(),
                                                   of_kind(records, "epoch").values(), strict=True)):
            expected = results["epochs"][number]
            self.assertEqual((test["loss"], test["accuracy"]), (expected["test_loss"], expected["test_accuracy"]))
            self.assertEqual((epoch["loss"], epoch["accuracy"]), (expected["train_loss"], expected["train_accuracy"]))
            self.assertAlmostEqual(epoch["images_per_second"], expected["images_per_second"], places=6)
            self.assertAlmostEqual(epoch["mfu"], expected["mfu"])
            self.assertEqual((epoch["epoch"], expected["ledger"]["steps"]), (number + 1, 10))

    def test_the_norm_is_the_global_norm_before_clipping(self):
        for name, options in (("alone", {}), ("ranks", {"ranks": 3}), ("clipped", {"ranks": 2, "clip_norm": 0.01}),
                              ("deferred", {"ranks": 2, "defer": 0.7, "bucket": "16KiB"})):
            with self.subTest(name):
                out = self.folder / name
                result = self.train(out, model="lenet", metrics_every=1, max_steps=1, **self.STEPS, **options)
                norm = helper.metrics(out)[0]["gradient_norm"]
                if name != "clipped":  # in the first step the velocity is the gradient
                    velocity = helper.read_checkpoint(out / "checkpoint.h5")["velocity"].values()
                    expected = np.sqrt(sum(np.sum(np.square(values, dtype=np.float64)) for values in velocity))
                    self.assertAlmostEqual(norm, expected, delta=1e-5 * expected)
                else:
                    self.assertEqual(result["epochs"][0]["gradient_norm"], {"mean": norm, "largest": norm})
                self.assertAlmostEqual(norm, helper.metrics(self.folder / "alone")[0]["gradient_norm"], delta=1e-4 * norm)

    def test_the_gradient_noise_scale(self):
        # The same parts of the batch, on ranks or accumulated.
        found = {}
        for name, options in (("ranks", {"ranks": 4}), ("both", {"ranks": 2, "accumulate": 2}), ("parts", {"accumulate": 4})):
            out = self.folder / name
            results = self.train(out, metrics_every=1, max_steps=12, **{**self.STEPS, "global_batch": 64}, **options)
            found[name] = results["gradient_noise"], helper.metrics(out)
            self.assertEqual(found[name][0]["steps"], 12)
        noise, records = found["ranks"]
        self.assertLess(noise["low"], noise["scale"])
        self.assertGreater(noise["high"], noise["scale"])
        scales = [record.get("noise_scale") for record in of_kind(records, "train").values()]
        known = [scale for scale in scales if scale is not None]
        self.assertGreater(len(known), 6)
        self.assertAlmostEqual(noise["scale"] / (sum(known) / len(known)), 1)
        for name in ("both", "parts"):
            other, its_records = found[name]
            for part in ("noise", "squared_gradient", "scale", "low", "high"):
                self.assertAlmostEqual(other[part] / noise[part], 1, delta=0.01, msg=f"{name} {part}")
            for scale, its in zip(scales, (record.get("noise_scale") for record in of_kind(its_records, "train").values())):
                if scale is not None and its is not None:
                    self.assertAlmostEqual(its / scale, 1, delta=0.02, msg=name)
        for name, options in (("one part", {}), ("not logged", {"ranks": 2, "metrics": "none"})):
            results = self.train(self.folder / name, max_steps=2, **self.STEPS, **options)
            self.assertNotIn("gradient_noise", results)

    def test_clipping_counts_each_step_once(self):
        out = self.folder / "out"
        results = self.train(out, metrics_every=1, clip_norm=0.5, **self.STEPS)
        norms = [record["gradient_norm"] for record in of_kind(helper.metrics(out), "train").values()]
        for epoch, of_epoch in zip(results["epochs"], (norms[:10], norms[10:]), strict=True):
            self.assertAlmostEqual(epoch["gradient_norm"]["mean"], sum(of_epoch) / 10)
            self.assertEqual(epoch["gradient_norm"]["largest"], max(of_epoch))

    def test_files(self):
        for formats, files in ((None, {"metrics.jsonl"}), ("none", set()), ("csv,tensorboard", {"metrics.csv", "tensorboard"}),
                               ("prometheus", {"metrics.prom"})):
            with self.subTest(formats=formats):
                out = self.folder / str(formats)
                self.train(out, metrics=formats, max_steps=1)
                known = {"metrics.jsonl", "metrics.csv", "tensorboard", "metrics.prom", "metrics.prom.partial"}
                self.assertEqual({path.name for path in out.iterdir()} & known, files)
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=(self.folder / "prometheus/metrics.prom").read_text(),
                                     capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        for formats, message in (("none,csv", "none excludes other formats"),
                                 ("xml", 'expected jsonl, csv, tensorboard, prometheus or none, not "xml"')):
            result = helper.run(*self.training(self.folder / "out", metrics=formats))
            self.assertEqual((result.status, len(result.err.splitlines())), (2, 1), str(result))
            self.assertIn(f"--metrics: {message}", result.err)

    def test_an_unwritable_file_does_not_end_the_run(self):
        out = self.folder / "out"
        (out / "metrics.jsonl").mkdir(parents=True)
        result = self.succeed(*self.training(out, metrics="jsonl,csv", metrics_every=2, overwrite=True, **self.STEPS), ranks=2)
        self.assertEqual(result.out.count("metrics.jsonl: cannot write: Is a directory"), 1, str(result))
        self.assertEqual((out / "metrics.csv").read_text().count("train"), 10)

    def test_plots(self):
        """scripts/plot has the records' points, at every position that it knows."""
        out = self.folder / "run"
        self.train(out, metrics_every=5, global_batch=50, epochs=2, ranks=2)
        loader = importlib.machinery.SourceFileLoader("plot", str(PLOT))
        plot = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot", loader))
        loader.exec_module(plot)
        of = {kind: of_kind(helper.metrics(out), kind) for kind in ("train", "test")}
        lines = plot.curves(out, "steps")
        self.assertEqual(set(lines), {(kind, measure) for kind in of for measure in ("loss", "accuracy")})
        for kind, measure in lines:
            self.assertEqual(lines[kind, measure], [(step, record[measure]) for step, record in of[kind].items()])
        self.assertEqual([x for x, _ in plot.curves(out, "samples")["train", "loss"]], [250, 500, 750, 1000])
        self.assertEqual([x for x, _ in plot.curves(out, "epochs")["test", "loss"]], [1, 2])
        self.assertEqual(plot.curves(out, "seconds")["train", "loss"][0][0], 0)
        script = [PLOT, out, "--out", self.folder / "figure"]
        if importlib.util.find_spec("matplotlib"):
            subprocess.run(script, check=True, cwd=self.folder)
            self.assertGreater((self.folder / "figure.png").stat().st_size, 10_000)
            self.assertIn("<svg", (self.folder / "figure.svg").read_text())
        (out / "metrics.jsonl").unlink()
        result = subprocess.run(script, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn("metrics.jsonl: No such file or directory; --metrics", result.stderr)

    def test_tensorboard_shows_each_step_once(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError as error:
            raise unittest.SkipTest(f"TensorBoard is not asked: {error}")
        out = self.folder / "out"
        options = {"metrics": "tensorboard,jsonl", "metrics_every": 3, "checkpoint_every": 13, **self.STEPS}
        helper.run(*self.training(out, inject="kill:rank=0,step=17", **options))
        self.train(out, resume=True, **options)
        shown = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        for kind in ("train", "test", "epoch"):
            expected = [(step, np.float32(record["loss"])) for step, record in of_kind(helper.metrics(out), kind).items()]
            self.assertEqual([(event.step, event.value) for event in shown.Scalars(f"{kind}/loss")], expected)


if __name__ == "__main__":
    helper.main()
