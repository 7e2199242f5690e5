"""Networks that read tokens, exported by PyTorch. tests/data/gpt2-hf.onnx is transformers' GPT2LMHeadModel (2 layers, 2
heads, width 8, 33 tokens, 16 positions, eager attention, without dropout) with an open batch and length, as
torch.onnx.export(optimize=False) writes it, without descriptions."""
import json
import pathlib
import unittest

import numpy as np

import helper
import weights_test

NETWORK = pathlib.Path(__file__).parent.parent / "data" / "gpt2-hf.onnx"
WINDOWS, LENGTH, VOCABULARY = 4, 8, 33

# Losses of PyTorch in float64. All windows are a batch, so their order has no effect.
SGD = [3.4976499, 3.4499944, 3.3909708, 3.3346217, 3.2687079, 3.1775127, 3.0686577, 2.9815685, 2.8666587, 2.7411848,
       2.6223787, 2.4863313, 2.3503915, 2.2086992, 2.0737897, 1.9287786, 1.7774182, 1.6445638, 1.5146622, 1.3924065]
ADAMW = [3.4976499, 3.391368, 3.3073257, 3.2236662, 3.1491106, 3.0858612, 3.0246939, 2.9625484, 2.8973734, 2.8349003,
         2.7709649, 2.7073915, 2.642164, 2.5761196, 2.5094808, 2.443466, 2.3778194, 2.3117025, 2.2453083, 2.1778476]


class TextNetworks(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        """Writes a file for each window, so that none is shifted."""
        super().setUpClass()
        cls.files = []
        for s in range(WINDOWS):
            tokens = [(5 * i * i + 3 * s * i + 7 * s + i) % VOCABULARY for i in range(LENGTH + 1)]
            cls.files.append(cls.shared / f"{s}.h5")
            with helper.h5py.File(cls.files[-1], "w") as file:
                file.attrs["vocabulary"] = np.uint64(VOCABULARY)
                for split in ("train", "validation"):
                    file[f"{split}/tokens"] = np.array(tokens, np.uint16)
                    file[f"{split}/documents"] = np.array([0, LENGTH + 1], np.uint64)

    def losses(self, out, *options, ranks, epochs=20):
        self.succeed("train", "--model", NETWORK, "--data", *self.files, "--length", LENGTH, "--global-batch", WINDOWS,
                     "--epochs", epochs, "--metrics-every", 1, "--out", out, *options, ranks=ranks)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def test_steps_have_the_losses_of_pytorch(self):
        sgd = self.losses(self.folder / "sgd", "--lr", 0.1, ranks=1)
        np.testing.assert_allclose(sgd, SGD, rtol=0, atol=2e-6)
        adamw = self.losses(self.folder / "adamw", "--optimizer", "adamw,beta2=0.95", "--lr", 0.01, "--weight-decay",
                            0.1, ranks=2)
        np.testing.assert_allclose(adamw, ADAMW, rtol=0, atol=2e-6)

    def test_the_run_needs_no_file_and_gives_pytorch_all_names(self):
        run = self.folder / "run"
        self.losses(run, "--lr", 0.1, ranks=1, epochs=10)
        resumed = self.losses(run, "--lr", 0.1, "--resume", ranks=1)
        np.testing.assert_allclose(resumed[-10:], SGD[10:], rtol=0, atol=2e-6)
        evaluation = self.folder / "evaluation.json"
        self.succeed("eval", "--data", *self.files, "--checkpoint", run, "--split", "validation", "--json",
                     evaluation)
        self.assertLess(json.loads(evaluation.read_text())["loss"], SGD[-1])
        weights = self.folder / "back.safetensors"
        self.succeed("export", weights, "--checkpoint", run)
        _, tensors = weights_test.read_safetensors(weights)
        self.assertEqual(len(tensors), 29)
        np.testing.assert_array_equal(tensors["net.lm_head.weight"], tensors["net.transformer.wte.weight"])
        self.assertEqual(tensors["net.transformer.h.0.attn.c_attn.weight"].shape, (8, 24))

    def test_what_does_not_fit_is_refused(self):
        data = ["--data", *self.files, "--out", self.folder / "run"]
        self.assertIn("there is no element 16 among 16 (windows have 17 tokens: see --length)",
                      helper.run("train", "--model", NETWORK, *data, "--length", 17).err)
        self.assertIn("it reads tokens, and the data is images", helper.run(
            "train", "--model", NETWORK, "--data", helper.write_data(self.folder / "images.h5", 60, 10, 12, 1), "--out",
            self.folder / "run").err)


if __name__ == "__main__":
    unittest.main()
