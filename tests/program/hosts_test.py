"""Training on several hosts with scripts/launch: bit-identical to one host, and no hang if a host is lost."""
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

    def launch(self, arguments):
        """Starts `arguments` from the first host, one rank on each."""
        prefix = [HOSTS, self.lab, "exec", NAMES[0], LAUNCH, "-np", len(NAMES), "--hosts", ",".join(NAMES)]
        environment = {**ENVIRONMENT, "OMPI_MCA_plm_rsh_agent": f"{HOSTS} {self.lab} rsh"}
        process = helper.start(*arguments, prefix=map(str, prefix), environment=environment)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process


class Hosts(HostsTest):
    def in_full_swing(self, **options):
        """A long run that has written its first checkpoint."""
        process = self.launch(self.training(self.folder / "out", all_reduce="ring", checkpoint_every=10, **options))
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
