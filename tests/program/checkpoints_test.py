"""Evaluation and checkpoints in training: intervals, retention, kills and damage, and the tools for checkpoints."""
import json
import os
import random
import re
import signal
import time

import helper
from helper import read_checkpoint, run

EPOCH = 13  # steps: 500 images, 40 a step


def steps_in(out):
    return sorted(int(path.stem[len("step-"):]) for path in (out / "checkpoints").glob("*.h5"))


def results_of(out):
    return json.loads((out / "results.json").read_text())


class CheckpointTest(helper.ProgramTest):
    def options(self, **options):
        return {"epochs": 2, "global_batch": 40, **options}

    def train_in(self, name, ranks=2, **options):
        out = self.folder / name
        return out, self.train(out, ranks=ranks, **self.options(**options))

    def evaluated(self, place, *options, ranks=0):
        file = self.folder / "eval.json"
        self.succeed("eval", "--data", self.data, "--checkpoint", place, "--json", file, *options, ranks=ranks)
        return json.loads(file.read_text())


class Intervals(CheckpointTest):
    def test_evaluation_every_few_steps(self):
        out, results = self.train_in("often", lr=0.001, eval_every=5, checkpoint_every=5, keep=100)
        found = results["evaluations"]
        self.assertEqual([(one["step"], one["epoch"]) for one in found],
                         [(5, 1), (10, 1), (15, 2), (20, 2), (25, 2), (26, 2)])
        self.assertEqual(steps_in(out), [5, 10, 15, 20, 25, 26])
        for one in found:
            self.assertEqual(one["images"], 100)
            self.assertLessEqual(one["test_accuracy"], one["test_top5"])
        self.assertTrue(any(one["test_accuracy"] < one["test_top5"] for one in found))
        self.assertAlmostEqual(sum(one["seconds"] for one in found), results["evaluation_seconds"])
        self.assertNotIn("test_accuracy", results["epochs"][0])
        for name in ("test_accuracy", "test_top5", "test_loss"):
            self.assertEqual(results["epochs"][1][name], found[-1][name])
            self.assertEqual(results[name], found[-1][name])
        for ranks, one in ((0, found[1]), (3, found[4])):  # eval gives the same result on any number of ranks
            again = self.evaluated(out / f"checkpoints/step-{one['step']:09}.h5", ranks=ranks)
            self.assertEqual((again["accuracy"], again["top5"]), (one["test_accuracy"], one["test_top5"]))
            self.assertAlmostEqual(again["loss"], one["test_loss"], places=5)
        plain, _ = self.train_in("plain", lr=0.001, eval_every="end", checkpoint_every="end")
        self.assertEqual([one["step"] for one in results_of(plain)["evaluations"]], [26])
        self.assertEqual(steps_in(plain), [26])
        self.assert_same_state(out / "checkpoint.h5", plain / "checkpoint.h5")  # neither changes the training

    def test_epochs(self):
        out, results = self.train_in("out", epochs=3, eval_every="2epochs", checkpoint_every="1epoch", keep=5)
        self.assertEqual([one["step"] for one in results["evaluations"]], [2 * EPOCH, 3 * EPOCH])
        self.assertEqual(["test_loss" in epoch for epoch in results["epochs"]], [False, True, True])
        self.assertEqual(steps_in(out), [EPOCH, 2 * EPOCH, 3 * EPOCH])

    def test_time(self):
        arguments = self.training(self.folder / "out", **self.options(eval_every="0.05s", checkpoint_every="0.05s", keep=99))
        self.succeed(*arguments, "--inject", "delay:rank=1,seconds=0.02", ranks=2)
        steps = [one["step"] for one in results_of(self.folder / "out")["evaluations"]]
        self.assertGreater(len(steps), 2)  # 26 steps take more than half a second
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], 26)
        self.assertGreater(len(steps_in(self.folder / "out")), 2)

    def test_only_some_batches(self):
        _, results = self.train_in("out", ranks=3, epochs=1, global_batch=30, eval_steps=2)
        self.assertEqual(results["evaluations"][0]["images"], 60)
        _, results = self.train_in("all", ranks=3, epochs=1, global_batch=30, eval_steps=20)
        self.assertEqual(results["evaluations"][0]["images"], 100)

    def test_invalid_options(self):
        for option in ("eval_every", "checkpoint_every"):
            for text in ("0", "soon", "1.5epochs"):
                result = run(*self.training(self.folder / "out", **{option: text}))
                self.assertEqual(result.status, 2, str(result))
                self.assertRegex(result.messages[0], f"--{option.replace('_', '-')}: '{text}' is not an interval")


class Keeping(CheckpointTest):
    def test_the_last_and_the_best_are_kept(self):
        out, results = self.train_in("out", model="lenet", lr=0.2, eval_every=2, checkpoint_every=4, keep=2)
        found = results["evaluations"]
        best = max(found, key=lambda one: one["test_accuracy"])  # the first of equals
        self.assertEqual(int(read_checkpoint(out / "best.h5")["attributes"]["step"]), best["step"])
        self.assertEqual(int(read_checkpoint(out / "checkpoint.h5")["attributes"]["step"]), 26)
        self.assertIn(len(steps_in(out)), (2, 3))
        self.assertLessEqual({best["step"], 26}, set(steps_in(out)))
        self.assertEqual(self.evaluated(out / "best.h5")["accuracy"], best["test_accuracy"])
        self.assertEqual(self.evaluated(out)["step"], 26)
        # A resumed run knows the best one so far.
        self.train(out, ranks=2, model="lenet", lr=1e-9, resume=True, **self.options(epochs=3))
        more = results_of(out)["evaluations"]
        self.assertEqual([one["step"] for one in more], [one["step"] for one in found] + [39])
        best = max(more, key=lambda one: one["test_accuracy"])
        self.assertEqual(int(read_checkpoint(out / "best.h5")["attributes"]["step"]), best["step"])

    def test_a_kill_during_a_write(self):
        whole, _ = self.train_in("whole")
        for at, step in (("written", 4), ("renamed", 8), ("linked", 8)):
            with self.subTest(at):
                out = self.folder / at
                options = self.options(checkpoint_every=4, keep=1)
                result = run(*self.training(out, **options), "--inject", f"kill:rank=0,step=8,at={at}", ranks=2)
                self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
                again = self.succeed(*self.training(out, resume=True, **options), ranks=2)
                self.assertIn(f"resuming after {step} steps", again.out)
                self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")
                self.assertLessEqual({path.suffix for path in (out / "checkpoints").iterdir()}, {".h5"})

    def test_kills_at_any_instant(self):
        out = self.folder / "out"
        options = {"epochs": 1000000, "global_batch": 40, "checkpoint_every": 1, "keep": 1, "eval_every": 3}
        instants = random.Random(5)
        for _ in range(4):
            process = helper.start(*self.training(out, resume=True, **options))
            self.await_checkpoint(process, out)
            time.sleep(instants.uniform(0, 0.1))
            os.kill(process.pid, signal.SIGKILL)
            helper.finish(process)
            self.succeed("checkpoint", "show", out)
        step = self.evaluated(out)["step"]
        self.train(out, resume=True, **{**options, "max_steps": step + 2})
        self.train(self.folder / "whole", epochs=1000000, global_batch=40, max_steps=step + 2)
        self.assert_same_state(self.folder / "whole/checkpoint.h5", out / "checkpoint.h5")

    def test_damaged_ones_are_skipped(self):
        whole, _ = self.train_in("whole")
        out, _ = self.train_in("out", checkpoint_every=4, eval_every="end", keep=3, max_steps=12)
        newest, before = (out / f"checkpoints/step-{step:09}.h5" for step in (12, 8))
        newest.write_bytes(newest.read_bytes()[:-1000])
        content = bytearray(before.read_bytes())
        content[len(content) // 2] ^= 1
        before.write_bytes(content)
        result = self.succeed("eval", "--data", self.data, "--checkpoint", out)
        self.assertRegex(result.out, r"skipped a damaged checkpoint: .*step-000000012\.h5")
        self.assertRegex(result.out, r"skipped a damaged checkpoint: .*step-000000008\.h5: damaged")
        self.assertIn("after 4 steps", result.out)
        result = run("eval", "--data", self.data, "--checkpoint", before)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], r"step-000000008\.h5: damaged")
        again = self.succeed(*self.training(out, resume=True, **self.options()), ranks=2)
        self.assertRegex(again.out, r"step-000000012\.h5(?s:.*)resuming after 4 steps")
        self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")
        self.assertEqual(run("checkpoint", "diff", whole, out).status, 0)


class Use(CheckpointTest):
    def commands(self, checkpoint, data=None):
        return (("eval", "--data", data or self.data, "--checkpoint", checkpoint),
                ("predict", data or self.data, "--checkpoint", checkpoint),
                ("export", self.folder / "network.onnx", "--checkpoint", checkpoint))

    def assert_refused(self, arguments, pattern):
        result = run(*arguments)
        self.assertEqual((result.status, len(result.messages)), (1, 1), f"{arguments}: {result}")
        self.assertRegex(result.messages[0], pattern)

    def test_invalid_numbers_are_refused(self):
        out, _ = self.train_in("out", ranks=0, max_steps=6, checkpoint_every=3, keep=5)
        newest = out / "checkpoints/step-000000006.h5"
        whole = newest.read_bytes()

        def spoil(file):
            file["parameters/fc1.weight"][0, 0] = float("nan")

        for edit, what in ((spoil, "parameters/fc1.weight holds values that are not finite"),
                           (lambda file: file.attrs.modify("deviation", helper.np.float32([0])), "attribute 'deviation': 0")):
            newest.write_bytes(whole)
            helper.edit_checkpoint(newest, edit)
            for arguments in self.commands(newest):
                self.assert_refused(arguments, "step-000000006.h5: " + what)
            self.assert_refused(self.training(out, resume=True, max_steps=8, **self.options()),
                                f"step-000000006.h5: {what}.*; to resume from .*step-000000003.h5, delete the later ones")
        newest.write_bytes(whole)
        helper.edit_checkpoint(newest, lambda file: file.attrs.modify("version", 1))
        for arguments in self.commands(newest):
            self.assert_refused(arguments, "a checkpoint of version 1, but this program reads version 4; use the program that wrote it")

    def test_other_classes_are_refused_and_other_normalization_is_reported(self):
        out, results = self.train_in("out", ranks=0, max_steps=6)
        other = self.folder / "other.h5"
        other.write_bytes(self.data.read_bytes())
        with helper.h5py.File(other, "r+") as file:
            file.attrs.modify("mean", helper.np.float32([0.9]))
            file["test/labels"][...] = file["test/labels"][()][::-1]  # a test set's fingerprint is not compared with the training set's
        accuracy = f"accuracy {100 * results['test_accuracy']:.2f} %"
        self.assertIn(accuracy, self.succeed("eval", "--data", self.data, "--checkpoint", out).out)
        evaluated = self.succeed("eval", "--data", other, "--checkpoint", out).out
        self.assertIn("its mean and std differ from those of the training data, which are used instead", evaluated)
        self.assertIn("of 100 images", evaluated)
        with helper.h5py.File(other, "r+") as file:
            file.attrs.modify("classes", [f"kind {n}" for n in range(10)])
        for arguments in self.commands(out, other)[:2]:
            self.assert_refused(arguments, r"other.h5: its classes differ from those that .*step-000000006.h5 was trained on")
            self.succeed(*arguments, "--data-changed")


class Tools(CheckpointTest):
    def test_show(self):
        out, results = self.train_in("out", model="lenet", ema=0.9)
        file = self.folder / "show.json"
        shown = self.succeed("checkpoint", "show", out, "--json", file).out
        found = json.loads(file.read_text())
        state = read_checkpoint(out / "checkpoint.h5")
        self.assertEqual((found["model"], found["step"], found["epoch"]), ("lenet", 26, 2))
        self.assertEqual(found["score"]["correct"] / found["score"]["count"], results["test_accuracy"])
        self.assertEqual({tensor["name"] for tensor in found["tensors"]}, set(state["parameters"]))
        for tensor in found["tensors"]:
            for group, norm in tensor["norms"].items():
                values = state[group][tensor["name"]]
                self.assertEqual(tensor["shape"], list(values.shape))
                self.assertAlmostEqual(norm, float(helper.np.linalg.norm(values.astype(float))), places=5)
            self.assertRegex(shown, re.escape(tensor["name"]) + r" +" + "x".join(map(str, tensor["shape"])))

    def test_diff(self):
        one, _ = self.train_in("one", epochs=1)
        other, _ = self.train_in("other", epochs=1, lr=0.03)
        self.assertIn("bit-identical", self.succeed("checkpoint", "diff", one, one / "checkpoint.h5").out)
        result = run("checkpoint", "diff", one, other)
        self.assertEqual(result.status, 1, str(result))
        a, b = (read_checkpoint(out / "checkpoint.h5")["parameters"] for out in (one, other))
        for name in a:
            line = next(line for line in result.out.splitlines() if line.startswith(f"parameters/{name} "))
            largest, relative = (float(number) for number in re.findall(r"[\d.e-]+(?=,|$)", line))
            self.assertAlmostEqual(largest, float(abs(a[name] - b[name]).max()), delta=1e-5 * largest)
            self.assertAlmostEqual(relative, self.distance(a[name], b[name]), delta=1e-4 * relative)

    def distance(self, a, b):
        a, b = a.astype(float), b.astype(float)
        return float(helper.np.linalg.norm(a - b) / helper.np.linalg.norm(a))

    def test_average(self):
        out, _ = self.train_in("out", eval_every="end", checkpoint_every=EPOCH, keep=5)
        files = [out / f"checkpoints/step-{step:09}.h5" for step in (13, 26)]
        mean = self.folder / "mean.h5"
        self.succeed("checkpoint", "average", mean, *files)
        states = [read_checkpoint(file)["parameters"] for file in files]
        for name, values in read_checkpoint(mean)["parameters"].items():
            helper.np.testing.assert_array_equal(
                values, helper.np.float32((states[0][name].astype(float) + states[1][name]) / 2))
        self.assertEqual(self.evaluated(mean)["count"], 100)
        result = run("checkpoint", "average", mean, *files)
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("exists already", result.messages[0])
        other, _ = self.train_in("other", model="lenet", max_steps=1)
        result = run("checkpoint", "average", self.folder / "none.h5", files[0], other)
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("models mlp and lenet", result.messages[0])
        self.assertFalse((self.folder / "none.h5").exists())


if __name__ == "__main__":
    helper.main()
