"""--optimizer muon: matrices become orthogonal as by torch.optim.Muon, other parameters follow AdamW or SGD, and runs are
bit-identical on any number of ranks."""
import os
import pathlib
import subprocess
import unittest

import helper
import numpy as np
from helper import read_checkpoint

PYTHON = pathlib.Path(os.environ.get("ANNULUS_TORCH", pathlib.Path(__file__).parents[2] / "build/peers/torch/bin/python"))

# Reads gradients from a file and writes what torch.optim.Muon subtracts from weights of 0, in double precision.
TORCH_MUON = """
import inspect, sys
import numpy as np, torch
from torch.optim import _muon
exec(inspect.getsource(_muon._zeropower_via_newtonschulz).replace("torch.bfloat16", "grad.dtype"), _muon.__dict__)
arrays = {}
for name, values in np.load(sys.argv[1]).items():
    gradient = torch.from_numpy(values).double().flatten(1)
    weight = torch.nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient
    torch.optim.Muon([weight], lr=1, weight_decay=0, adjust_lr_fn="original").step()
    arrays[name] = -weight.detach().reshape(values.shape).numpy()
np.savez(sys.argv[2], **arrays)
"""

def has_torch():
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", "from torch.optim import Muon"], capture_output=True).returncode == 0


class Muon(helper.ProgramTest):
    def weights(self, name, **options):
        out = self.folder / name
        # With AMX products would be in bf16.
        self.train(out, model="lenet", max_steps=1, eval_every="none", instruction_set="avx2", **options)
        return read_checkpoint(out / "checkpoint.h5")["parameters"]

    def directions(self, optimizer, rate, before, **options):
        after = self.weights(optimizer, optimizer=optimizer, lr=rate, **options)
        return {name: (before[name].astype(np.float64) - after[name]) / rate for name in before}

    @unittest.skipUnless(has_torch(), f"{PYTHON} has no PyTorch with Muon: scripts/setup --peers=torch")
    def test_a_step_is_that_of_pytorch(self):
        """The gradients are those of a step of SGD with a rate at which the weights do not count."""
        before = self.weights("before", optimizer="sgd,momentum=0", lr=1e-30)
        gradients = self.directions("sgd,momentum=0", 1e6, before)
        found = self.directions("muon,iteration=newton-schulz,scale=shape", 1, before)
        matrices = [name for name, values in found.items() if values.ndim > 1]
        self.assertGreater(len(matrices), 3)
        np.savez(self.folder / "gradients.npz", **{name: gradients[name] for name in matrices})
        subprocess.run([PYTHON, "-c", TORCH_MUON, self.folder / "gradients.npz", self.folder / "updates.npz"], check=True)
        expected = np.load(self.folder / "updates.npz")
        for name in matrices:
            with self.subTest(name):
                farthest = np.abs(found[name] - expected[name]).max()
                if name.startswith("fc3"):  # the head
                    self.assertGreater(farthest, 0.1)
                else:
                    self.assertLess(farthest, 1e-5)

    def test_rates(self):
        """--lr is the rate of AdamW, --muon-lr that of matrices."""
        before = self.weights("before", optimizer="sgd,momentum=0", lr=1e-30)
        small, large = (self.directions(optimizer, 0.01, before, muon_lr=rate)
                        for optimizer, rate in (("muon", 0.01), ("muon,steps=6", 0.03)))
        for name, values in small.items():
            with self.subTest(name):
                factor = 3 if values.ndim > 1 and not name.startswith("fc3") else 1
                self.assertLess(np.abs(factor * values - large[name]).max(), 1e-4)

    def test_excepted_layers_are_updated_by_the_others_rule(self):
        before = self.weights("before", optimizer="sgd,momentum=0", lr=1e-30)
        muon = self.directions("muon,others=sgd,others-momentum=0.5", 0.5, before, muon_except="conv1,fc1")
        sgd = self.directions("sgd,momentum=0.5", 0.5, before)
        for name in sgd:
            same = muon[name].tobytes() == sgd[name].tobytes()
            self.assertEqual(same, not name.startswith(("conv2.w", "fc2.w")), name)

    def test_shards_have_the_same_bits_on_any_number_of_ranks(self):
        checkpoints = []
        for ranks in (1, 2, 3, 4, 7):
            out = self.folder / str(ranks)
            self.train(out, ranks=ranks, model="resnet20", optimizer="muon", lr=0.01, global_batch=21, shards=7, max_steps=3,
                       clip_norm=0.5, ema=0.9, eval_steps=1)
            checkpoints.append(out / "checkpoint.h5")
        for checkpoint in checkpoints[1:]:
            self.assert_same_state(checkpoints[0], checkpoint)

    def test_sharded_runs_have_the_bits_of_synchronous_ones(self):
        """Each matrix has an owner then."""
        for ranks, options in ((1, {}), (2, {"clip_norm": 0.5, "ema": 0.9}), (3, {"all_reduce": "ring", "freeze": "conv1"}),
                               (4, {"all_reduce": "message-ring", "accumulate": 2}), (7, {"weight_decay": 0.01})):
            with self.subTest(ranks=ranks, **options):
                runs = {}
                for strategy in "synchronous", "sharded":
                    out = self.folder / f"{strategy}-{ranks}"
                    of = self.train(out, ranks=ranks, strategy=strategy, model="resnet20", optimizer="muon", lr=0.01, muon_lr=0.02,
                                    global_batch=28, max_steps=4, eval_steps=1, bucket="20KiB", **options)
                    runs[strategy] = out / "checkpoint.h5", [(epoch["train_loss"], epoch.get("gradient_norm")) for epoch in of["epochs"]]
                (a, of_a), (b, of_b) = runs.values()
                self.assert_same_state(a, b)
                self.assertEqual(of_a, of_b)

    def test_resuming(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        options = {"model": "lenet", "optimizer": "muon,momentum=0.9", "lr": 0.01, "eval_steps": 1, "epochs": 2}
        self.train(whole, ranks=2, max_steps=8, **options)
        for steps, strategy in (3, "sharded"), (5, "synchronous"), (8, "sharded"):
            self.train(parts, ranks=2, max_steps=steps, strategy=strategy, resume=steps > 3 or None, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        result = helper.run(*self.training(parts, max_steps=9, resume=True, **{**options, "optimizer": "adamw"}))
        self.assertIn("was made with --optimizer muon", result.err)

    def test_other_strategies(self):
        for name, ranks, options in (("local", 2, {"strategy": "local"}), ("pipeline", 2, {"pipeline": 2, "accumulate": 2}),
                                     ("defer", 2, {"defer": 0.3})):
            with self.subTest(name):
                results = self.train(self.folder / name, ranks=ranks, model="lenet", optimizer="muon", lr=0.01, epochs=3,
                                     weight_decay=0.1, **options)
                losses = [epoch["train_loss"] for epoch in results["epochs"]]
                self.assertLess(losses[-1], 0.7 * losses[0])

    def test_refusals(self):
        self.assert_all_refused((
            ({"strategy": "sharded", "defer": 0.5}, "--defer does not go with --optimizer muon with --strategy sharded"),
            ({"strategy": "async"}, "--strategy async does not support --optimizer muon, because owners update parts of layers"),
            ({"optimizer": "muon,others=lars"}, "expected adamw or sgd, not \"lars\""),
            ({"optimizer": "muon,nesterov"}, "muon has the settings"),
            ({"optimizer": "adamw", "muon_lr": 0.1}, "--muon-lr and --muon-except belong to --optimizer muon"),
            ({"muon_except": "conv9"}, "--muon-except"),
            ({"muon_except": "*"}, "--optimizer muon: lenet has no matrices before the head")),
            model="lenet", optimizer="muon")


if __name__ == "__main__":
    helper.main()
