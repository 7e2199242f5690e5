"""Training on several hosts with scripts/launch: bit-identical to one host."""
import json
import os
import pathlib
import signal
import subprocess

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


if __name__ == "__main__":
    helper.main()
