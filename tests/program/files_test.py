"""No command destroys a file that is not its own."""
import json
import os
import signal

import helper
from helper import run


class Outputs(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_folder = cls.shared / "run"
        result = run(*cls.training(cls.run_folder, max_steps=1))
        assert result.status == 0, result
        cls.checkpoint = cls.run_folder / "checkpoint.h5"
        cls.profile = cls.shared / "step.json"
        result = run("bench", "step", "--model", "mlp", "--batch", 2, "--seconds", 0.01, "--json", cls.profile)
        assert result.status == 0, result

    def commands(self, file):
        """Every command that writes a file, and what it reads."""
        step = ["bench", "step", "--model", "mlp", "--batch", 2, "--seconds", 0.01]
        trained = ["--checkpoint", self.run_folder]
        return {
            "eval": (["eval", "--data", self.data, *trained, "--json", file], self.data),
            "predict": (["predict", self.data, *trained, "--jsonl", file], self.data),
            "export": (["export", file, *trained], self.checkpoint),
            "show": (["checkpoint", "show", self.run_folder, "--json", file], self.checkpoint),
            "average": (["checkpoint", "average", file, self.checkpoint, self.run_folder], self.checkpoint),
            "step": ([*step, "--json", file], None),
            "timeline": ([*step, "--timeline", file], None),
            "train's timeline": (self.training(self.folder / "out", max_steps=1, timeline=file), self.data),
            "input": (["bench", "input", "--data", self.data, "--seconds", 0.01, "--json", file], self.data),
            "noise": (["bench", "noise", "--seconds", 0.01, "--json", file], None),
            "all-reduce": (["bench", "all-reduce", "--sizes", "4KiB", "--seconds", 0.01, "--json", file], None),
            "models": (["models", "--model", "mlp", "--json", file], None),
            "predict-scaling": (["predict-scaling", self.profile, "--latency", "1us", "--bandwidth", "1GB/s", "--json",
                                 file], self.profile),
        }

    def refused(self, arguments, names):
        result = run(*arguments)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], names)

    def test_a_users_file_is_kept(self):
        file = self.folder / "notes"
        for name, (arguments, _) in self.commands(file).items():
            with self.subTest(name):
                file.write_text('{"rows": "mine"}\n')
                self.refused(arguments, r"notes: exists already.*--overwrite")
                self.assertEqual(file.read_text(), '{"rows": "mine"}\n')

    def test_inputs_are_never_overwritten(self):
        for name, (_, source) in self.commands("").items():
            if source is None:
                continue
            with self.subTest(name):
                before = source.read_bytes()
                arguments, _ = self.commands(source)[name]
                self.refused([*arguments, "--overwrite"], r"is an input of this command")
                self.assertEqual(source.read_bytes(), before)

    def test_its_own_files_are_replaced_and_others_on_request(self):
        file = self.folder / "file"
        for name in ("eval", "predict", "export", "timeline"):
            with self.subTest(name):
                arguments, _ = self.commands(file)[name]
                file.write_text("mine")
                self.succeed(*arguments, "--overwrite")
                first = file.read_bytes()
                self.assertNotEqual(first, b"mine")
                self.succeed(*arguments)  # its own now
                file.unlink()


class Folders(helper.ProgramTest):
    def test_a_users_folder_is_no_run(self):
        out = self.folder / "project"
        out.mkdir()
        for name in ("config.toml", "results.json"):
            (out / name).write_text("mine")
        result = run(*self.training(out, max_steps=1), ranks=2)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"project: holds files that this program did not write; .*--overwrite")
        self.assertEqual({path.name: path.read_text() for path in out.iterdir()},
                         {"config.toml": "mine", "results.json": "mine"})
        self.succeed(*self.training(out, max_steps=1, overwrite=True))
        self.assertEqual(json.loads((out / "results.json").read_text())["status"], "complete")

    def test_empty_folders_and_those_of_failed_runs_are_accepted(self):
        out = self.folder / "out"
        out.mkdir()
        self.assertEqual(run(*self.training(out, lr=1e30, epochs=3, checkpoint_every="end", eval_every="end")).status, 1)
        self.assertTrue((out / "config.toml").exists())
        self.train(out, max_steps=1)

    def test_one_run_at_a_time(self):
        out = self.folder / "out"
        long = {"epochs": 10000, "checkpoint_every": 5, "eval_every": "end"}
        process = helper.start(*self.training(out, **long))
        self.await_checkpoint(process, out)
        for resume in (True, None):
            result = run(*self.training(out, resume=resume, **long), ranks=2)
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertRegex(result.messages[0],
                             rf"out: another process of this program is writing to it \(host \S+, process {process.pid}\)")
        self.assertIsNone(process.poll())
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.train(out, resume=True, **{**long, "max_steps": 1})  # the lock is released

    def test_links_in_a_run_are_not_followed(self):
        out, victim = self.folder / "out", self.folder / "victim"
        victim.write_text("precious\n")
        self.train(out, max_steps=1)
        (out / "metrics.jsonl").unlink()
        for name in ("metrics.jsonl", "results.json.partial", "config.toml.partial"):
            (out / name).symlink_to(victim)
        result = self.succeed(*self.training(out, max_steps=3, resume=True, metrics_every=1))
        self.assertRegex(result.out, r"metrics\.jsonl: is a symbolic link")
        self.assertEqual(victim.read_text(), "precious\n")

    def test_pipes_in_a_run_block_nobody(self):
        """Opening one would wait for whoever writes to it, or reads from it, forever."""
        out, options = self.folder / "run", {"shards": 2, "survive": True}
        self.train(out, max_steps=2, **options)
        names = ("control.json", "control-answer.json", "results.json", "config.toml", "metrics.csv", "metrics.jsonl")
        for command in (self.training(out, max_steps=3, resume=True, **options), self.training(out, max_steps=3, resume=True, **options),
                        ["eval", "--data", self.data, "--checkpoint", out], ["checkpoint", "show", out]):
            for name in names:
                (out / name).unlink(missing_ok=True)
                os.mkfifo(out / name)
            self.assertEqual(run(*command, timeout=30).status, 0, command)
        result = run("eval", "--data", self.data, "--follow", out, "--grace", 0, "--json", self.folder / "followed", timeout=30)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.train(out, max_steps=4, resume=True, **options)
        self.assertEqual(json.loads((out / "results.json").read_text())["status"], "complete")

    def test_edited_results_do_not_end_a_run(self):
        out = self.folder / "run"
        self.train(out, max_steps=2)
        for results in ({"status": 7, "began": 8, "epochs": [9, {"epoch": "10"}]}, {"status": None, "epochs": {"a": 1}}, [1]):
            (out / "results.json").write_text(json.dumps(results))
            self.succeed(*self.training(out, max_steps=2, resume=True))
            self.succeed(*self.training(out, max_steps=3, resume=True))
            (out / "results.json").write_text(json.dumps(results))
            self.assertEqual(run("eval", "--data", self.data, "--follow", out, "--grace", 0, "--overwrite", "--json",
                                 self.folder / "followed").status, 1)

    def test_an_import_does_not_touch_another_folder_of_parts(self):
        parts = self.folder / "x.h5.parts"
        parts.mkdir()
        (parts / "thesis.txt").write_text("mine")
        source = self.folder / "source"
        for split in ("train", "test"):
            (source / split / "cat").mkdir(parents=True)
        result = run("import", self.folder / "x.h5", source, "--from", "folder")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"x\.h5\.parts: holds files that this program did not write")
        self.assertEqual((parts / "thesis.txt").read_text(), "mine")

    def test_an_import_replaces_data_files_only(self):
        source, file = self.folder / "source", self.folder / "x.h5"
        (source / "train").mkdir(parents=True)
        for content in ("mine", None):
            file.write_text(content) if content else file.symlink_to(source)
            result = run("import", file, source, "--from", "folder")
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertRegex(result.messages[0], r"x\.h5: (exists already.*--overwrite|is a folder)")
            self.assertFalse((self.folder / "x.h5.parts").exists())
            file.unlink()


if __name__ == "__main__":
    helper.main()
