"""Training on text, evaluation, generation and export."""
import json
import random
import re
import subprocess
import unittest

import numpy as np

import helper

LENGTH = 32


def verses(seed, lines):
    """Text that a small network learns within seconds."""
    chosen = random.Random(seed)
    colours, things = ("red", "green", "blue"), ("stone", "river", "house", "cloud")
    return "".join(f"the {chosen.choice(colours)} {chosen.choice(things)} is here\n" for _ in range(lines))


class Text(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        source = self.folder / "texts"
        source.mkdir()
        for number in range(8):
            (source / f"{number}.txt").write_text(verses(number, 40))
        self.data = self.folder / "text.h5"
        self.succeed("import", self.data, source, "--from", "text", "--hold-out", "0.2")

    def text_training(self, out, *more, ranks=0, epochs=2, lr=0.004, clip_norm=1):
        return self.succeed("train", "--data", self.data, "--model", "gpt-tiny", "--length", LENGTH, "--out", out,
                            "--global-batch", 12, "--optimizer", "adamw", "--lr", lr, "--clip-norm", clip_norm,
                            "--epochs", epochs, *more, ranks=ranks)

    def evaluation(self, run, *more, ranks=0):
        file = self.folder / "evaluation.json"
        self.succeed("eval", "--data", self.data, "--checkpoint", run, "--split", "validation", "--json", file,
                     "--overwrite", *more, ranks=ranks)
        return json.loads(file.read_text())

    def complaint(self, *arguments, ranks=0):
        result = helper.run(*arguments, ranks=ranks)
        self.assertNotEqual(result.status, 0)
        self.assertEqual(len(result.messages), 1, result)
        return result.err

    def test_training_evaluation_and_generation(self):
        runs = [self.folder / f"run{ranks}" for ranks in (1, 2, 3)]
        for ranks, run in enumerate(runs, 1):
            out = self.text_training(run, epochs=12, ranks=ranks).out
            self.assertRegex(out, r"epoch 12/12  loss \d\.\d+  accuracy \d+\.\d+ %  validation loss .* tokens/s")
        results = [json.loads((run / "results.json").read_text()) for run in runs]
        for result in results:
            self.assertGreater(result["train_tokens_per_second"], 0)
            self.assertLess(result["validation_perplexity"], 1.6)
            # The sums of ranks are rounded differently, and nothing else: it grows with the steps.
            first, expected = (r["epochs"][0]["validation_loss"] for r in (result, results[0]))
            self.assertAlmostEqual(first, expected, delta=1e-3)

        found = [self.evaluation(runs[0], "--batch", batch, ranks=ranks) for ranks, batch in ((1, 5), (2, 3), (3, 1))]
        tokens = len(self.validation_tokens())
        for result in found:
            self.assertEqual((result["count"], result["correct"]), (tokens - 1, found[0]["correct"]))
            self.assertAlmostEqual(result["loss"], found[0]["loss"], delta=1e-5)
            self.assertAlmostEqual(result["perplexity"], np.exp(result["loss"]), delta=1e-4)
            share = tokens / (tokens - self.validation_documents)
            self.assertAlmostEqual(result["bits_per_byte"], result["loss"] / np.log(2) * share, delta=1e-4)

        def generated(*more):
            return self.succeed("generate", "--checkpoint", runs[1], "--prompt", "the blue ", "--tokens", 60, *more).out

        self.assertRegex(generated("--temperature", 0), r"^the blue (stone|river|house|cloud) is here\nthe ")
        self.assertEqual(generated("--seed", 7), generated("--seed", 7))
        self.assertNotEqual(generated("--seed", 7), generated("--seed", 8))
        self.assertEqual(generated("--top-k", 1), generated("--temperature", 0))
        long = self.succeed("generate", "--checkpoint", runs[1], "--tokens", 5 * LENGTH, "--seed", 3).out
        self.assertGreater(len(long), LENGTH)  # longer than the network's windows

    def test_dropout_and_recomputed_blocks(self):
        """Recomputing changes no result; dropout does, but not with the number of ranks."""
        runs = {"plain": ["--dropout", 0], "dropped": ["--dropout", 0.2],
                "recomputed": ["--dropout", 0.2, "--recompute", "blocks"], "ranks": ["--dropout", 0.2]}
        losses = {}
        for name, more in runs.items():
            self.text_training(self.folder / name, *more, ranks=2 if name == "ranks" else 0)
            losses[name] = json.loads((self.folder / name / "results.json").read_text())["epochs"][-1]["train_loss"]
        self.assertEqual(losses["recomputed"], losses["dropped"])
        self.assertAlmostEqual(losses["ranks"], losses["dropped"], delta=1e-3)
        self.assertGreater(losses["dropped"], losses["plain"] + 0.01)
        for options in (["--dropout", 0.1], ["--recompute", "blocks"]):
            self.assertRegex(self.complaint("train", "--data", self.data, "--model", "lenet", "--out", self.folder / "bad",
                                            *options), "lenet")

    def validation_tokens(self):
        import h5py
        with h5py.File(self.data, "r") as file:
            self.validation_documents = len(file["validation/documents"]) - 1
            return file["validation/tokens"][()]

    def test_a_run_resumes_to_the_same_bits(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.text_training(whole, ranks=2)
        self.text_training(parts, "--max-steps", 7, ranks=2)
        self.text_training(parts, "--resume", ranks=2)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_a_gpt_of_another_size(self):
        run, name = self.folder / "run", "gpt-tiny --layers 1 --width 24 --heads 3 --context 16"
        model = ["--model", "gpt-tiny", "--layers", 1, "--width", 24, "--heads", 3, "--context", 16]
        training = ["train", "--data", self.data, "--out", run, "--batch", 8, "--lr", 0.004]
        out = self.succeed(*training, *model, "--max-steps", 3).out  # --length is --context's
        self.assertIn(f": {name} on 1 rank, ", out)
        self.assertIn(" windows of 16 tokens, ", out)
        for other in (["--model", "gpt-tiny"], [*model[:2], "--layers", 2, *model[4:]]):
            self.assertIn(f"resume it with --model {name}\n", self.complaint(*training, *other, "--length", 16, "--resume"))
        out = self.succeed("train", "--config", run / "config.toml", "--resume", "--max-steps", 5).out
        self.assertRegex(out, r"resuming after 3 steps: epoch 1, window 24 of (.*\n)*stopped after 5 steps")
        self.assertGreater(self.evaluation(run)["count"], 0)
        generated = subprocess.run([helper.ANNULUS, "generate", "--checkpoint", run, "--tokens", "40"], capture_output=True)
        self.assertEqual((generated.returncode, generated.stderr[:9]), (0, b"40 tokens"))
        listed = self.folder / "models.json"
        self.succeed("models", *model, "--json", listed)
        row = json.loads(listed.read_text())["models"]
        block = 4 * 24 + 25 * 72 + 25 * 24 + 25 * 96 + 97 * 24
        self.assertEqual((row["model"], row["parameters"]), (name, 257 * 24 + 16 * 24 + block + 2 * 24))
        for step in (["bench", "step", *model], ["bench", "step", "--from", run]):
            self.assertIn(f"{name}, 1 rank x 2 ", self.succeed(*step, "--batch", 2, "--seconds", 0.01).out)
        for wrong, complaint in (
                (["--model", "lenet", "--layers", 2], "lenet has a fixed size: --layers, --width, --heads and --context are for GPTs"),
                (["--model", "gpt2", "--heads", 5], "gpt2: a width of 768 is not divisible by 5 heads: choose another"),
                (["--model", "gpt-tiny", "--layers", 0], '--layers: expected a whole number >= 1, not "0"'),
                (["--model", "gpt-tiny", "--context", 16, "--length", 32], "windows of 32 tokens are longer than --context 16"),
                (["--model", "none.onnx", "--width", 8], "--width: the network of an ONNX file has a fixed size"),
                ([*model, "--weights", self.folder / "none.safetensors"], "none.safetensors")):
            self.assertIn(complaint, self.complaint(*training[:3], "--out", self.folder / "wrong", *wrong))

    def test_deferred_buckets_are_bit_identical(self):
        plain, deferred = self.folder / "plain", self.folder / "deferred"
        options = ["--bucket", "16KiB", "--all-reduce", "ring", "--accumulate", 2, "--eval-every", "3"]
        self.text_training(plain, *options, ranks=3, clip_norm=0)
        self.text_training(deferred, *options, "--defer", 0.7, "--max-steps", 7, ranks=3, clip_norm=0)
        self.text_training(deferred, *options, "--defer", 0.3, "--resume", ranks=3, clip_norm=0)
        self.assert_same_state(plain / "checkpoint.h5", deferred / "checkpoint.h5")
        losses = [json.loads((run / "results.json").read_text())["validation_loss"] for run in (plain, deferred)]
        self.assertEqual(*losses)

    def test_parts_of_a_batch(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.text_training(whole, ranks=2)
        self.text_training(parts, "--accumulate", 3, ranks=2)
        losses = [json.loads((run / "results.json").read_text())["validation_loss"] for run in (whole, parts)]
        self.assertAlmostEqual(losses[0], losses[1], delta=0.02)

    def test_weights_return(self):
        run, again = self.folder / "run", self.folder / "again"
        weights, exported = self.folder / "w.safetensors", self.folder / "again.safetensors"
        self.text_training(run)
        self.succeed("export", weights, "--checkpoint", run)
        self.text_training(again, "--weights", weights, "--max-steps", 1, lr=1e-12)
        self.succeed("export", exported, "--checkpoint", again)
        first, second = (self.tensors(path) for path in (weights, exported))
        self.assertEqual(list(first), list(second))
        self.assertEqual(first["h.0.attn.c_attn.weight"].shape, (64, 192))
        self.assertNotIn("lm_head.weight", first)
        for name, values in first.items():
            np.testing.assert_allclose(values, second[name], rtol=0, atol=2e-12, err_msg=name)  # of one tiny step

    @staticmethod
    def tensors(path):
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8:8 + size]), content[8 + size:]
        return {name: np.frombuffer(data[slice(*about["data_offsets"])], "<f4").reshape(about["shape"])
                for name, about in sorted(header.items()) if name != "__metadata__"}

    def test_wrong_uses(self):
        run = self.folder / "run"
        self.text_training(run, "--max-steps", 1)
        images = self.folder / "images.h5"
        helper.write_data(images)
        out = self.folder / "out"
        self.assertIn("lenet is for images, and the data is text",
                      self.complaint("train", "--data", self.data, "--model", "lenet", "--out", out))
        self.assertIn("gpt-tiny is for text, and the data is images",
                      self.complaint("train", "--data", images, "--model", "gpt-tiny", "--out", out))
        self.assertIn("--length", self.complaint("train", "--data", images, "--model", "lenet", "--length", 8, "--out", out))
        self.assertIn("see annulus generate", self.complaint("predict", "--checkpoint", run, images))
        self.assertIn("images", self.complaint("eval", "--checkpoint", run, "--data", images))
        self.assertIn("single rank", self.complaint("generate", "--checkpoint", run, ranks=2))
        lenet = self.folder / "lenet"
        self.succeed("train", "--data", images, "--model", "lenet", "--out", lenet, "--epochs", 1)
        self.assertIn("trained on images", self.complaint("generate", "--checkpoint", lenet))

    def test_onnx(self):
        run, file = self.folder / "run", self.folder / "gpt.onnx"
        self.text_training(run, "--max-steps", 1)
        out = self.succeed("export", file, "--checkpoint", run).out
        self.assertIn(f"tokens                 int64, {{batch, {LENGTH}}}", out)
        import onnx
        onnx.checker.check_model(onnx.load(str(file)), full_check=True)


if __name__ == "__main__":
    helper.main()
