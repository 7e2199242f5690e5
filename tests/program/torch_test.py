"""src/torch: PyTorch's process group over Annulus's collectives, built against the PyTorch of `scripts/setup --peers=torch`, or of
$ANNULUS_TORCH, a Python that has it."""
import os
import pathlib
import subprocess
import tempfile
import unittest

import helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = pathlib.Path(os.environ.get("ANNULUS_TORCH", ROOT / "build/peers/torch/bin/python"))
RANK = pathlib.Path(__file__).with_name("torch_rank.py")
EVERY = ("reductions", "copies", "messages", "groups", "ddp", "sparse", "fsdp", "copies_nothing")


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

    def run_ranks(self, ranks, *arguments, status=0, options=()):
        environment = {**os.environ, "PYTHONPATH": self.package, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *options, "-np",
                               str(ranks), PYTHON, *map(str, arguments)], capture_output=True, text=True, timeout=240,
                              env=environment)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def test_every_operation(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(self.run_ranks(ranks, RANK, *EVERY), "passed\n" * ranks)

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

    def test_a_start_without_mpi(self):
        done = subprocess.run([PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", RANK, "copies"], capture_output=True,
                              text=True, timeout=240, env={**os.environ, "PYTHONPATH": self.package})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the process group has 2 ranks, but MPI started 1: start the program with mpirun or srun", done.stderr)

    @unittest.skipUnless(can_import("lightning"), "no Lightning")
    def test_lightning(self):
        self.assertIn("passed", self.run_ranks(2, RANK, "lightning"))

    @unittest.skipUnless(can_import("transformers", "accelerate"), "no Hugging Face Trainer")
    def test_trainer(self):
        self.assertIn("passed", self.run_ranks(2, RANK, "trainer"))


if __name__ == "__main__":
    unittest.main()
