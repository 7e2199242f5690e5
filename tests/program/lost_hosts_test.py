"""Training on several hosts with scripts/launch: the job ends soon, or continues, if a host or a rank is lost."""
import json
import subprocess
import time

import helper
from helper import read_checkpoint
from hosts_test import STRATEGIES, HostsTest


class LostHosts(HostsTest):
    def in_full_swing(self, **options):
        """A long run that has written its first checkpoint."""
        all_reduce = None if "shards" in options else "ring"
        process = self.launch(self.training(self.folder / "out", all_reduce=all_reduce, checkpoint_every=10, **options))
        self.await_file(process, self.folder / "out" / "checkpoint.h5")
        return process

    def assert_checkpoint_is_whole(self):
        out = self.folder / "out"
        step = int(read_checkpoint(out / "checkpoint.h5")["attributes"]["step"])
        for path, resume in ((out, True), (self.folder / "undisturbed", None)):
            self.train(path, ranks=3, all_reduce="ring", epochs=1000000, max_steps=step + 2, resume=resume)
        self.assert_same_state(out / "checkpoint.h5", self.folder / "undisturbed" / "checkpoint.h5")

    def assert_job_ends(self, process, since, cause):
        """The job ends within seconds, reports the reason, and keeps its checkpoint."""
        result = helper.finish(process, since=since)
        self.assertGreater(result.status, 0, str(result))
        self.assertLess(result.seconds, 15)
        self.assertRegex(result.err, cause)
        self.assert_checkpoint_is_whole()

    def test_a_killed_rank_ends_the_job_of_a_strategy(self):
        for strategy in (*STRATEGIES, {"strategy": "async"}):
            with self.subTest(strategy):
                since = time.monotonic()
                process = self.launch(self.training(self.folder / "-".join(map(str, strategy.values())), epochs=1000000, batch=6, **strategy)
                                      + ["--inject", "kill:rank=1,step=5"])
                result = helper.finish(process, since=since)
                self.assertGreater(result.status, 0, str(result))
                self.assertLess(result.seconds, 15)
                self.assertRegex(result.err, r"rank 1 .*on node h2 .*signal 9")

    def test_a_cut_link_ends_the_job(self):
        process = self.in_full_swing(epochs=1000000)
        since = time.monotonic()
        self.hosts("cut", "h2")
        self.assert_job_ends(process, since, r"(?i)lost communication|connection")

    def test_a_launcher_that_is_cut_off_ends(self):
        """Nor do ranks go on: its own one is in the minority, and the daemons of the others end them."""
        process = self.in_full_swing(epochs=1000000, survive=True, shards=3)
        since = time.monotonic()
        self.hosts("cut", "h1")
        result = helper.finish(process, since=since)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertIn("launch: no rank is left on this host or on others that answer: the job ends", result.err.splitlines())
        self.assertLess(result.seconds, 20)
        ranks = ["pgrep", "-f", f"train .*--out {self.folder}/out"]
        while time.monotonic() < since + 30 and subprocess.run(ranks, capture_output=True).returncode == 0:
            time.sleep(0.2)
        self.assertEqual(subprocess.run(ranks, capture_output=True, text=True).stdout, "")

    def test_a_host_that_is_cut_off_for_a_moment_does_not_give_up_others(self):
        """Its messages to them are then repeated after pauses, so that it and they hear nothing of each other for longer."""
        out = self.folder / "out"
        process = self.in_full_swing(epochs=1000000, survive=True, shards=3, max_steps=300,
                                     inject="delay:rank=0,seconds=0.01")
        self.hosts("cut", "h2")
        time.sleep(1.5)
        self.hosts("mend", "h2")
        result = helper.finish(process, 90)
        self.assertEqual(result.status, 0, str(result))
        losses = json.loads((out / "results.json").read_text()).get("losses", [])
        self.assertLessEqual({loss["host"] for loss in losses}, {"h2"})

    def test_a_host_that_cannot_run_the_program_ends_the_job(self):
        """With --survive, mpirun would leave the other ranks waiting for its rank."""
        folder = self.folder / "bin"
        folder.mkdir()
        program = folder / "program"
        training = self.training(self.folder / "out", survive=True, shards=3)
        for name, there in (("no library", "#!/bin/sh\nexit 127\n"), ("no program", None)):
            with self.subTest(name):
                program.write_text('#!/bin/sh\nexec "$@"\n')
                program.chmod(0o755)
                on_host = self.folder / name
                on_host.mkdir()
                if there:
                    (on_host / "program").write_text(there)
                    (on_host / "program").chmod(0o755)
                mounted = self.hosts("exec", "h2", "mount", "--bind", on_host, folder)
                self.assertEqual(mounted.returncode, 0, mounted.stderr)
                result = helper.finish(self.launch(training, program=[program]), 20)
                self.assertEqual(result.status, 1, str(result))
                self.assertIn("launch: rank 1 ended before the job could survive this: the job ends", result.err.splitlines())

    def test_a_killed_rank_ends_the_job(self):
        since = time.monotonic()
        process = self.launch(self.training(self.folder / "out", all_reduce="ring", epochs=1000000, checkpoint_every=10)
                              + ["--inject", "kill:rank=2,step=35"])
        self.assert_job_ends(process, since, r"rank 2 .*on node h3 .*signal 9")

    def test_a_briefly_frozen_host_continues(self):
        process = self.in_full_swing(epochs=1000000, max_steps=500)
        self.hosts("freeze", "h2")
        time.sleep(4)
        self.assertIsNone(process.poll(), "it ended, or was not frozen")
        self.hosts("thaw", "h2")
        result = helper.finish(process)
        self.assertEqual(result.status, 0, str(result))
        self.assert_checkpoint_is_whole()


if __name__ == "__main__":
    helper.main()
