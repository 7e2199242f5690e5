"""src/torch: PyTorch's process group over Annulus's collectives, built against the PyTorch of `scripts/setup --peers=torch`, or of
$ANNULUS_TORCH, a Python that has it."""
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

import helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = pathlib.Path(os.environ.get("ANNULUS_TORCH", ROOT / "build/peers/torch/bin/python"))
RANK = pathlib.Path(__file__).with_name("torch_rank.py")
EVERY = ("reductions", "copies", "messages", "groups", "ddp", "sparse", "fsdp", "copies_nothing", "mean_of_shards", "profiles")
RANK_1 = rf"annulus: rank 1 on {re.escape(socket.gethostname())} \(process \d+\)"
OPERATION = r"in operation 2, all-reduce of 3 fp32 \(sum\)"


def can_import(*modules):
    try:
        return subprocess.run([PYTHON, "-c", "import " + ", ".join(modules)], capture_output=True, timeout=120).returncode == 0
    except OSError:
        return False


@unittest.skipUnless(can_import("torch.distributed", "setuptools"), f"{PYTHON} has no PyTorch: scripts/setup --peers=torch")
class ProcessGroup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.package = folder.name
        built = subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target",
                                cls.package, ROOT / "src/torch"], capture_output=True, text=True, timeout=600)
        assert built.returncode == 0, built.stdout + built.stderr

    def run_processes(self, ranks, *arguments, status=0, prefixes={}):
        """Without a launcher. Returns all ranks' output, and their errors."""
        with socket.socket() as free:
            free.bind(("", 0))
            environment = {**os.environ, "PYTHONPATH": self.package, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
                           "MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
        processes = [subprocess.Popen([*prefixes.get(rank, []), PYTHON, RANK, *arguments], env={**environment, "RANK": str(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        for process in processes:
            self.addCleanup(process.kill)
        results = [process.communicate(timeout=240) for process in processes]
        out, err = ("".join(result[i] for result in results) for i in range(2))
        for process in processes:
            if status is not None:
                self.assertEqual(process.returncode, status, out + err)
            self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"annulus-{process.pid}-*")), [])
        return out, err

    def run_ranks(self, ranks, *arguments, status=0, options=()):
        environment = {**os.environ, "PYTHONPATH": self.package, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *options, "-np",
                               str(ranks), PYTHON, *map(str, arguments)], capture_output=True, text=True, timeout=240,
                              env=environment)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout[-3000:] + done.stderr[-3000:])
        self.err = done.stderr
        return done.stdout

    def assert_passed(self, out, ranks):
        """Each rank says so; mpirun may mix their lines."""
        self.assertEqual((out.count("passed"), out.replace("passed", "").strip()), (ranks, ""))

    def test_every_operation(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assert_passed(self.run_ranks(ranks, RANK, *EVERY), ranks)

    def test_ranks_that_call_different_operations(self):
        out = self.run_ranks(2, RANK, "mismatch", status=3)
        self.assertIn("error: annulus: rank 0 called all-reduce of 3 fp32 (sum), but rank 1 all-reduce of 4 fp32 (sum)", out)

    def test_a_killed_rank(self):
        out = self.run_ranks(3, RANK, "killed", status=None, options=["--enable-recovery"])
        self.assertRegex(out, r"error: annulus: rank 1 on \S+ \(process \d+\) has ended in operation 2, all-reduce of 3 fp32")

    def test_a_rank_that_does_not_call(self):
        out = self.run_ranks(2, RANK, "frozen", status=3)
        self.assertIn("Timed out : no progress for 3 s in operation 2, all-reduce of 100000 fp32 (sum), waiting for rank 1 on ", out)

    def test_the_example_over_both(self):
        for name in ("annulus", "gloo"):
            self.assertRegex(self.run_ranks(2, ROOT / "src/torch/examples/ddp.py", name),
                             rf"^{name}, 2 ranks: loss \d\.\d+, median step [\d.]+ ms\n$")

    def test_every_operation_under_torchrun(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                checks = [check for check in EVERY if ranks > 1 or check != "messages"]  # gloo sends none to the rank itself
                done = subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", RANK, *checks],
                                      capture_output=True, text=True, timeout=240,
                                      env={**os.environ, "PYTHONPATH": self.package, "OMP_NUM_THREADS": "1"})
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
                self.assertEqual(done.stdout.replace("\n", ""), "passed" * ranks)  # lines of two ranks may mix

    def test_a_killed_process(self):
        out, _ = self.run_processes(3, "killed", status=None)
        self.assertEqual(len(re.findall(rf"error: {RANK_1} has ended {OPERATION}", out)), 2, out)

    def test_processes_on_several_nodes(self):
        other = ["unshare", "--mount", "--map-root-user", "sh", "-c",
                 'echo other > /dev/shm/boot.$$ && mount --bind /dev/shm/boot.$$ /proc/sys/kernel/random/boot_id && rm /dev/shm/boot.$$ && '
                 'exec "$@"', "sh"]
        if subprocess.run([*other, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no file systems can be mounted here")
        _, err = self.run_processes(2, "copies", status=1, prefixes={1: other})
        self.assertRegex(err, r"annulus: ranks 0 and 1 are on different nodes, \S+ and \S+, and MPI, which sends messages between nodes, "
                              r"did not start them: start the program with mpirun or srun --mpi=pmix, one process for each rank\n")

    def test_a_rank_that_exits(self):
        """The other ranks report it within seconds, instead of after the timeout of 120 s."""
        # mpirun ends all ranks when one has failed, unless --enable-recovery; then rank 1 would wait in MPI_Finalize for ever.
        for check, reason, options, reports in (("exits", "the program has ended", [], 1),
                                                ("raises", "ValueError: this file has no images", ["--enable-recovery"], 2)):
            for out, fewest in ((self.run_ranks(3, RANK, check, status=None, options=options), reports),
                                (self.run_processes(3, check, status=None)[0], 2)):
                with self.subTest(check):
                    found = re.findall(rf"error: {RANK_1} has left {OPERATION}.*?: {reason}; after (\d+) s", out)
                    self.assertGreaterEqual(len(found), fewest, out)
                    self.assertLess(max(map(int, found)), 20)

    def test_ranks_may_end_at_different_times(self):
        self.assert_passed(self.run_ranks(3, RANK, "ends_early"), 3)
        self.assert_passed(self.run_processes(3, "ends_early")[0], 3)

    def test_a_rank_that_does_not_start(self):
        self.run_ranks(2, RANK, "absent", status=1)
        self.assertIn("the start of the process group took longer than 3 s: a rank has not called init_process_group()", self.err)
        self.assertIn("annulus: rank 1 has not called init_process_group() or new_group() within 3 s",
                      self.run_ranks(2, RANK, "absent_from_group", status=3))

    def test_shards_have_the_same_bits_on_any_number_of_ranks(self):
        found = [dict(line.split() for line in self.run_ranks(ranks, RANK, "shards").splitlines() if line != "passed")
                 for ranks in (1, 2, 4)]
        self.assertEqual(len({run["shards"] for run in found}), 1, found)
        self.assertEqual(len({run["gloo"] for run in found}), 3, found)

    @unittest.skipUnless(can_import("lightning"), "no Lightning")
    def test_lightning(self):
        self.assertIn("passed", self.run_ranks(2, RANK, "lightning"))

    @unittest.skipUnless(can_import("transformers", "accelerate"), "no Hugging Face Trainer")
    def test_trainer(self):
        self.assertIn("passed", self.run_ranks(2, RANK, "trainer"))


if __name__ == "__main__":
    unittest.main()
