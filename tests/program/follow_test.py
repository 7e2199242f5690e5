"""Evaluation of a run's checkpoints beside it (`eval --follow`), and the export of the best at its end."""
import json
import os
import re
import shutil
import signal
import time

import helper


class Follow(helper.ProgramTest):
    OPTIONS = {"global_batch": 50, "checkpoint_every": 2, "eval_every": "end", "keep": 100}

    def lines(self, name="lines.jsonl"):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def follow(self, run, *options, interval=0, ranks=0, data=None):
        return helper.start("eval", "--follow", run, "--data", data or self.data, "--interval", interval, "--json",
                            self.folder / "lines.jsonl", *options, ranks=ranks)

    def await_lines(self, count):
        file, deadline = self.folder / "lines.jsonl", time.monotonic() + helper.TIMEOUT
        while not file.exists() or len(self.lines()) < count:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def end_of(self, process):
        result = helper.finish(process)
        self.assertEqual(result.status, 0, str(result))
        return result

    def test_a_run_that_is_complete(self):
        run = self.folder / "run"
        self.train(run, max_steps=10, **self.OPTIONS)
        damaged = run / "checkpoints/step-000000004.h5"
        damaged.write_bytes(damaged.read_bytes()[:-1000])
        result = self.end_of(self.follow(run, ranks=2))
        self.assertEqual(re.findall(r"mlp after (\d+) steps on", result.out), ["2", "6", "8", "10"])
        self.assertEqual(result.out.count("skipped a damaged checkpoint: "), 1)
        self.assertRegex(result.out, r"skipped a damaged checkpoint: .*step-000000004\.h5")
        found = self.lines()
        self.assertEqual([line["step"] for line in found], [2, 6, 8, 10])
        for line in found:
            alone = self.folder / f"{line['step']}.json"
            self.succeed("eval", "--checkpoint", line["checkpoint"], "--data", self.data, "--json", alone, ranks=2)
            expected = {"--follow": str(run), "--data": str(self.data), "--split": "test", "--weights": "auto",
                        "--per-class": "false", "--image": "0", "--length": "0"}
            self.assertEqual({**json.loads(alone.read_text()), "kind": line["kind"], "options": expected,
                              "run_began": json.loads((run / "results.json").read_text())["began"]}, line)
        # Another call adds what is new.
        self.succeed(*self.training(run, max_steps=12, epochs=2, resume=True, **self.OPTIONS))
        result = self.end_of(self.follow(run))
        self.assertEqual(re.findall(r"mlp after (\d+) steps on", result.out), ["12"])
        self.assertEqual([line["step"] for line in self.lines()], [2, 6, 8, 10, 12])

    def test_a_run_that_goes_on(self):
        run = self.folder / "run"
        following = self.follow(run)  # waits for the run
        time.sleep(0.5)
        self.train(run, ranks=2, epochs=100000, max_steps=300, **{**self.OPTIONS, "checkpoint_every": 10, "keep": 1})
        result = self.end_of(following)
        steps = [line["step"] for line in self.lines()]
        self.assertEqual(steps[-1], 300)
        self.assertEqual(steps, sorted(set(steps)))  # those that were removed meanwhile are left out
        self.assertNotIn("damaged", result.out)
        self.assertEqual(self.lines()[-1]["accuracy"], json.loads((run / "results.json").read_text())["test_accuracy"])

    def test_a_file_of_another_run_or_other_options(self):
        run, other, file = self.folder / "run", self.folder / "other", self.folder / "lines.jsonl"
        for folder in (run, other):
            self.train(folder, max_steps=4, **self.OPTIONS)
        self.end_of(self.follow(run))
        lines = file.read_bytes()
        new_data = helper.write_data(self.folder / "data.h5")
        for followed, data, options, before, now in ((other, self.data, (), f"--follow {run}", other),
                                                     (run, new_data, (), f"--data {self.data}", new_data),
                                                     (run, self.data, ("--weights", "raw"), "--weights auto", "raw"),
                                                     (run, self.data, ("--split", "train"), "--split test", "train"),
                                                     (run, self.data, ("--per-class",), "--per-class false", "true")):
            with self.subTest(before=before, now=now):
                result = helper.finish(self.follow(followed, *options, data=data))
                self.assertEqual((result.status, result.messages),
                                 (1, [f"annulus: {file}: has evaluations with {before}, not {now}; give another file, or "
                                      "--overwrite to start it anew"]))
                self.assertEqual(file.read_bytes(), lines)
        self.end_of(self.follow(other, "--overwrite"))
        self.assertEqual([(line["options"]["--follow"], line["step"]) for line in self.lines()],
                         [(str(other), 2), (str(other), 4)])
        self.end_of(self.follow(other, "--overwrite"))  # the same run: evaluated again
        self.assertEqual([line["step"] for line in self.lines()], [2, 4])

    def test_a_new_run_in_the_folder(self):
        run = self.folder / "run"
        began = []
        for steps in (4, 6):
            self.train(run, max_steps=steps, resume=steps > 4 or None, **self.OPTIONS)
            self.end_of(self.follow(run))
            began.append(json.loads((run / "results.json").read_text())["began"])
        self.assertEqual(*began)  # a resumed run is the same one
        shutil.rmtree(run)
        self.train(run, max_steps=8, **self.OPTIONS)
        result = helper.finish(self.follow(run))
        now = json.loads((run / "results.json").read_text())["began"]
        self.assertEqual((result.status, result.messages), (1, [
            f"annulus: {run}: this run began at {now}, and the evaluations are of one that began at {began[0]}; give another "
            "--json file, or --overwrite to start it anew"]))
        self.assertEqual([line["step"] for line in self.lines()], [2, 4, 6])
        self.end_of(self.follow(run, "--overwrite"))
        self.assertEqual([line["step"] for line in self.lines()], [2, 4, 6, 8])

    def test_a_torn_line(self):
        run, file = self.folder / "run", self.folder / "lines.jsonl"
        self.train(run, max_steps=4, **self.OPTIONS)
        self.end_of(self.follow(run))
        lines = file.read_bytes()
        first = lines.index(b"\n")
        for size in (0, 1, 12, first, first + 1, first + 2, len(lines) - 1):
            with self.subTest(size=size):
                file.write_bytes(lines[:size])
                self.end_of(self.follow(run))
                self.assertEqual(file.read_bytes(), lines)

    def test_a_run_that_is_stopped_or_killed(self):
        for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, 1)):
            with self.subTest(number):
                run = self.folder / number.name
                training = helper.start(*self.training(run, epochs=1000000, **{**self.OPTIONS, "keep": 3}))
                self.await_checkpoint(training, run)
                (self.folder / "lines.jsonl").unlink(missing_ok=True)
                following = self.follow(run, "--grace", 1)
                self.await_lines(2)  # while it goes on
                os.kill(training.pid, number)
                helper.finish(training)
                result = helper.finish(following)
                self.assertEqual(result.status, status, str(result))
                self.assertEqual(len(result.messages), status)
                newest = max((run / "checkpoints").glob("*.h5"))
                self.assertEqual(self.lines()[-1]["step"], int(newest.stem.removeprefix("step-")))

    def test_a_run_that_was_killed_before(self):
        run = self.folder / "run"
        training = helper.start(*self.training(run, epochs=1000000, **self.OPTIONS))
        self.await_checkpoint(training, run)
        training.kill()
        helper.finish(training)
        process = (run / "annulus.lock").read_text().strip()
        result = helper.finish(self.follow(run, "--grace", 0.5, ranks=2))
        self.assertNotEqual(result.status, 0)
        self.assertEqual(result.messages,
                         [f"annulus: {run}: its last job ({process}) has ended, and no other has continued the run for "
                          "0.5 s (--grace)"])
        # Another job, such as the same one when it is requeued, may continue the run.
        newest = self.lines()[-1]["step"]
        following = self.follow(run)
        time.sleep(1)
        self.assertIsNone(following.poll())
        self.succeed(*self.training(run, epochs=1000000, resume=True, max_steps=newest + 2, **self.OPTIONS))
        self.end_of(following)
        self.assertEqual(self.lines()[-1]["step"], newest + 2)

    def test_a_resumed_run_that_is_killed_before_its_first_result(self):
        run = self.folder / "run"
        self.train(run, max_steps=4, **self.OPTIONS)
        training = helper.start(*self.training(run, epochs=2, resume=True, inject="kill:rank=0,step=6", **self.OPTIONS))
        self.assertNotEqual(helper.finish(training).status, 0)
        result = helper.finish(self.follow(run, "--grace", 0.5))
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("no other has continued the run for 0.5 s (--grace)", result.messages[0])

    def test_the_interval(self):
        run = self.folder / "run"
        self.train(run, max_steps=8, **{**self.OPTIONS, "checkpoint_every": 4})
        (run / "results.json").write_text('{"status": "running"}')  # as on a file system without locks
        began = time.monotonic()
        following = self.follow(run, interval=1)
        self.await_lines(2)
        self.assertGreater(time.monotonic() - began, 1)
        self.assertIsNone(following.poll())
        (run / "results.json").write_text('{"status": "complete"}')
        self.end_of(following)

    def test_invalid_options(self):
        other = self.folder / "other.jsonl"
        other.write_text('{"step": 1}')  # not even a line
        for arguments, words in ((("--data", self.data), "--follow RUN"),
                                 (("--data", self.data, "--follow", "a", "--checkpoint", "b"), "--checkpoint"),
                                 (("--data", self.data, "--checkpoint", "b", "--interval", 1), "--follow"),
                                 (("--data", self.data, "--follow", "a", "--interval", -1), "--interval"),
                                 (("--data", self.data, "--checkpoint", "b", "--grace", 1), "--follow"),
                                 (("--data", self.data, "--follow", "a", "--json", other), "is no annulus evaluation of a run")):
            with self.subTest(arguments=arguments):
                result = helper.run("eval", *arguments)
                self.assertNotEqual(result.status, 0)
                self.assertRegex(result.messages[0], re.escape(words))
        self.assertEqual(other.read_text(), '{"step": 1}')
        result = helper.run("eval", "--data", self.data, "--follow", "a", "--json", self.data, "--overwrite")
        self.assertRegex(result.messages[0], "is an input of this command")


class ExportBest(helper.ProgramTest):
    def test_the_best_is_exported(self):
        for name, ranks in (("best.onnx", 2), ("best.safetensors", 0)):
            with self.subTest(name):
                run, file, expected = self.folder / name / "run", self.folder / name / name, self.folder / f"expected-{name}"
                file.parent.mkdir()
                result = self.succeed(*self.training(run, epochs=3, global_batch=50, export_best=file), ranks=ranks)
                self.assertEqual(result.out.count(f"{file}: mlp after"), 1)
                self.succeed("export", expected, "--checkpoint", run / "best.h5")
                self.assertEqual(file.read_bytes(), expected.read_bytes())
                # A complete run that is resumed writes it again.
                file.unlink()
                self.succeed(*self.training(run, epochs=3, global_batch=50, export_best=file, resume=True), ranks=ranks)
                self.assertEqual(file.read_bytes(), expected.read_bytes())

    def test_the_link_may_be_moved(self):
        run, file, expected = self.folder / "run", self.folder / "best.onnx", self.folder / "expected.onnx"
        options = {"epochs": 3, "global_batch": 50, "keep": 3}
        self.train(run, **options)
        self.succeed("export", expected, "--checkpoint", run / "best.h5")
        other = next(one for one in (run / "checkpoints").iterdir() if one != (run / "best.h5").resolve())
        (run / "best.h5").unlink()
        (run / "best.h5").symlink_to(other)
        self.succeed(*self.training(run, export_best=file, resume=True, **options))
        self.assertEqual(file.read_bytes(), expected.read_bytes())

    def test_only_complete_runs_export(self):
        run, file = self.folder / "run", self.folder / "best.onnx"
        training = helper.start(*self.training(run, epochs=1000000, checkpoint_every=5, export_best=file))
        self.await_checkpoint(training, run)
        os.kill(training.pid, signal.SIGTERM)
        self.assertEqual(helper.finish(training).status, helper.STOPPED)
        self.assertFalse(file.exists())

    def test_other_files_are_not_replaced(self):
        file = self.folder / "notes.onnx"
        file.write_text("keep me")
        result = helper.run(*self.training(self.folder / "run", export_best=file))
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("notes.onnx", result.messages[0])
        self.assertEqual(file.read_text(), "keep me")
        self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    helper.main()
