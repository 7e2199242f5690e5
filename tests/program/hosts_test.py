"""Training on several hosts with scripts/launch: bit-identical to one host, and no hang if a host is lost."""
import json
import os
import pathlib
import signal
import subprocess
import time

import helper
from helper import read_checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "hosts" / "hosts"
LAUNCH = ROOT / "scripts" / "launch"
NAMES = ["h1", "h2", "h3"]

STRATEGIES = ({"strategy": "sharded"}, {"strategy": "local", "sync_every": 2}, {"pipeline": 3, "accumulate": 3})

# Hosts share the cores of one machine, so waiting ranks must yield; only their network is their own.
ENVIRONMENT = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_no_tree_spawn": "1", "OMPI_MCA_btl": "self,vader,tcp",
               "OMPI_MCA_mpi_yield_when_idle": "1"}


class HostsTest(helper.ProgramTest):
    """Gives each test three hosts."""

    def setUp(self):
        super().setUp()
        self.lab = self.folder / "hosts"
        self.addCleanup(self.hosts, "down")
        made = self.hosts("up", len(NAMES), "1gbit")
        if made.returncode != 0:
            self.skipTest(f"several hosts are not tried: {made.stderr.strip() or 'cannot make them here'}")

    def hosts(self, *arguments):
        return subprocess.run([HOSTS, self.lab, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                              capture_output=True)

    def launch(self, arguments, program=()):
        """Starts `arguments` from the first host, one rank on each, by `program` if given."""
        prefix = [HOSTS, self.lab, "exec", NAMES[0], LAUNCH, "-np", len(NAMES), "--hosts", ",".join(NAMES), *program]
        environment = {**ENVIRONMENT, "OMPI_MCA_plm_rsh_agent": f"{HOSTS} {self.lab} rsh"}
        process = helper.start(*arguments, prefix=map(str, prefix), environment=environment)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process


class Hosts(HostsTest):
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

    def test_bit_identical_to_one_host(self):
        options = {"all_reduce": "ring", "model": "lenet", "max_steps": 6, "bucket": "64KiB"}
        result = helper.finish(self.launch(self.training(self.folder / "several", **options)))
        self.assertEqual(result.status, 0, str(result))
        self.assertIn("mpirun -np 3", result.err)  # scripts/launch prints what it runs
        self.assertIn("--mca btl_tcp_if_include 198.18.0.1/24", result.err)  # the network that connects them
        self.train(self.folder / "one", ranks=3, **options)
        self.assert_same_state(self.folder / "one" / "checkpoint.h5", self.folder / "several" / "checkpoint.h5")

    def test_strategies_are_bit_identical_to_one_host(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy):
                name = "-".join(strategy)
                options = {"all_reduce": "ring", "model": "lenet", "max_steps": 6, "batch": 6, **strategy}
                result = helper.finish(self.launch(self.training(self.folder / f"{name}-several", **options)))
                self.assertEqual(result.status, 0, str(result))
                self.train(self.folder / f"{name}-one", ranks=3, **options)
                self.assert_same_state(*(self.folder / f"{name}-{hosts}" / "checkpoint.h5" for hosts in ("one", "several")))

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

    def test_rounds_survive_ranks_and_a_host(self):
        for name, options, faults in (("workers", {"strategy": "async"}, ("kill:rank=0,step=7",)),
                                      ("worker", {"strategy": "async", "servers": 1, "sync_every": 8}, ("kill:rank=1,step=7",)),
                                      ("server", {"strategy": "async", "servers": 1, "model": "lenet"}, ("kill:rank=2,step=9",)),
                                      ("local", {"strategy": "local"}, ("kill:rank=1,step=7",))):
            with self.subTest(name):
                out = self.folder / name
                injected = [word for fault in faults for word in ("--inject", fault)]
                arguments = self.training(out, survive=True, global_batch=30, epochs=3, eval_steps=1,
                                          **{"sync_every": 4, **options})
                result = helper.finish(self.launch([*arguments, *injected]))
                self.assertEqual(result.status, 0, str(result))
                results = json.loads((out / "results.json").read_text())
                self.assertEqual([epoch["steps"] for epoch in results["epochs"]], [17, 17, 17])
                self.assertEqual(len(results["losses"]), len(faults))
                if name == "worker":  # the others have completed its round
                    self.assertEqual([(loss["step"], loss["repeated_steps"]) for loss in results["losses"]], [(8, 0)])
        out = self.folder / "host"
        process = self.launch(self.training(out, survive=True, strategy="async", model="lenet", epochs=1000000, max_steps=800,
                                            global_batch=30, checkpoint_every=20, eval_every="end"))
        self.await_file(process, out / "checkpoint.h5")
        self.hosts("cut", "h3")
        result = helper.finish(process)
        self.assertEqual(result.status, 0, str(result))
        self.assertEqual([loss["rank"] for loss in json.loads((out / "results.json").read_text())["losses"]], [2])

    def test_asynchronous_steps_without_staleness_have_the_bits_of_synchronous_ones(self):
        options = {"all_reduce": "ring", "model": "resnet20", "batch": 10, "max_steps": 6, "bucket": "64KiB", "eval_steps": 1}
        result = helper.finish(self.launch(self.training(self.folder / "several", strategy="async", staleness=0, sync_every=3,
                                                         **options)))
        self.assertEqual(result.status, 0, str(result))
        self.train(self.folder / "one", ranks=3, **options)
        self.assert_same_state(self.folder / "one" / "checkpoint.h5", self.folder / "several" / "checkpoint.h5")

    def test_shards_are_bit_identical_to_one_rank(self):
        options = {"shards": 7, "model": "lenet", "max_steps": 6}
        result = helper.finish(self.launch(self.training(self.folder / "several", **options)))
        self.assertEqual(result.status, 0, str(result))
        self.assertIn("tree of shards, over MPI messages", result.out)
        self.train(self.folder / "one", **options)
        self.assert_same_state(self.folder / "one" / "checkpoint.h5", self.folder / "several" / "checkpoint.h5")

    def test_a_resumed_run_is_bit_identical(self):
        """The crossover measured at the start, which affects rounding, is not measured again."""
        def train(steps, **options):
            result = helper.finish(self.launch(self.training(out, model="lenet", max_steps=steps, **options)))
            self.assertEqual(result.status, 0, str(result))
            return result.out
        out = self.folder / "out"
        train(2)
        attributes = read_checkpoint(out / "checkpoint.h5")["attributes"]
        self.assertEqual(attributes["ranks"], 3)
        crossover = 8192 if attributes["crossover_bytes"] != 8192 else 16384
        helper.edit_checkpoint(out / "checkpoint.h5", lambda file: file.attrs.modify("crossover_bytes", crossover))
        self.assertIn(f"recursive doubling up to {crossover // 1024} KiB as before", train(4, resume=True))
        self.assertEqual(read_checkpoint(out / "checkpoint.h5")["attributes"]["crossover_bytes"], crossover)
        self.assertNotIn("rounding may differ", train(6, resume=True))
        # A measurement on two ranks does not apply to three.
        helper.edit_checkpoint(out / "checkpoint.h5", lambda file: file.attrs.modify("ranks", 2))
        self.assertNotIn("KiB as before", train(8, resume=True))

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
        process = self.in_full_swing(epochs=1000000, survive=True, shards=3, max_steps=500,
                                     inject="delay:rank=0,seconds=0.01")
        self.hosts("cut", "h2")
        time.sleep(1.5)
        self.hosts("mend", "h2")
        result = helper.finish(process, 60)
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
