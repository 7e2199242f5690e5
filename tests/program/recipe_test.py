"""The training recipe: rates, parts of a step, clipping, averaged weights."""
import json
import pathlib
import tomllib

import h5py
import numpy as np

import helper
from helper import read_checkpoint, run

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "recipes"

# Steps of 35: 500 images are 14 of them and one of 10, which leaves ranks of uneven shares.
STEPS = {"global_batch": 35}


class Losses(helper.ProgramTest):
    def test_binary_cross_entropy(self):
        out = self.folder / "out"
        results = self.train(out, ranks=2, epochs=6, lr=0.1, loss="binary")
        self.assertGreater(results["test_accuracy"], 0.9)
        file = self.folder / "eval.json"
        self.succeed("eval", "--data", self.data, "--checkpoint", out, "--json", file)
        evaluated = json.loads(file.read_text())
        self.assertAlmostEqual(evaluated["loss"], results["test_loss"], places=5)
        # The mean over images and classes, of sigmoids.
        self.succeed("predict", self.data, "--checkpoint", out, "--top", 10, "--jsonl", self.folder / "found.jsonl")
        losses, sums = [], []
        for line in (self.folder / "found.jsonl").read_text().splitlines():
            found = json.loads(line)
            shares = np.array([entry["probability"] for entry in found["top"]])
            logits = np.array([entry["logit"] for entry in found["top"]])
            np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), rtol=1e-6)
            labelled = np.array([entry["class"] == found["label"] for entry in found["top"]])
            losses.append(-np.log(np.where(labelled, shares, 1 - shares)).mean())
            sums.append(shares.sum())
        self.assertAlmostEqual(np.mean(losses), results["test_loss"], places=5)
        self.assertGreater(np.abs(np.array(sums) - 1).max(), 0.001)
        result = run(*self.training(out, epochs=7, lr=0.1, resume=True))
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], "was made with --loss binary: resume it with the same --loss")


class ClassWeights(helper.ProgramTest):
    def test_class_weights(self):
        """Equal weights are those of none; balanced ones are inversely proportional to the numbers of images."""
        self.train(self.folder / "none")
        self.train(self.folder / "one", class_weights=",".join(["1"] * 10))
        self.assert_same_state(self.folder / "none/checkpoint.h5", self.folder / "one/checkpoint.h5")
        with h5py.File(self.data) as file:
            counts = np.bincount(file["train/labels"][()], minlength=10)
        given = ",".join(f"{np.float32(500 / (10 * count)):.9g}" for count in counts)
        result = self.succeed(*self.training(self.folder / "balanced", class_weights="balanced"), ranks=2)
        self.assertIn(f"  loss        classes are weighted, from {50 / max(counts):.4g} to {50 / min(counts):.4g}\n",
                      result.out)
        self.train(self.folder / "given", ranks=2, class_weights=given)
        self.assert_same_state(self.folder / "balanced/checkpoint.h5", self.folder / "given/checkpoint.h5")
        for weights, status, message in (("1,2", 1, "--class-weights: 2 weights for 10 classes"),
                                         ("1,0", 2, "--class-weights: expected a number > 0")):
            result = run(*self.training(self.folder / "refused", class_weights=weights))
            self.assertEqual(result.status, status, str(result))
            self.assertRegex(result.err, message)


class Rates(helper.ProgramTest):
    SCHEDULE = {"lr": 0.01, "lr_per": 25, "warmup": 1.5, "schedule": "step:2,3", "lr_factor": 0.5}

    def test_the_rule_is_said_and_the_rate_follows_it(self):
        out = self.folder / "out"
        result = self.succeed(*self.training(out, epochs=4, global_batch=50, **self.SCHEDULE), ranks=2)
        rule = "0.01 x 50/25 = 0.02, warm-up 1.5 epochs from 0.01, then x 0.5 after epochs 2, 3"
        self.assertIn(f"  rate        {rule}\n", result.out)
        results = json.loads((out / "results.json").read_text())
        self.assertEqual(results["learning_rate"], rule)
        # Of an epoch's last step, the tenth of ten, in the middle.
        expected = [0.01 + 0.01 * 0.95 / 1.5, 0.02, 0.01, 0.005]
        for epoch, rate in zip(results["epochs"], expected, strict=True):
            self.assertAlmostEqual(epoch["learning_rate"], rate, delta=1e-8)
            self.assertIn(f"rate {rate:.4g}", result.out)

    def test_ranks_and_resuming_do_not_change_rates(self):
        options = {"epochs": 3, "schedule": "cosine", "warmup": 0.7, **STEPS}
        whole = self.folder / "whole"
        self.train(whole, ranks=2, **options)
        for ranks in (0, 3):
            self.train(self.folder / str(ranks), ranks=ranks, **options)
            self.assertLess(self.farthest(whole / "checkpoint.h5", self.folder / f"{ranks}/checkpoint.h5"), 1e-4)
        parts = self.folder / "parts"
        self.train(parts, ranks=2, max_steps=7, **options)
        self.train(parts, ranks=2, resume=True, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_misuse_is_refused(self):
        for options, names in (({"schedule": "step"}, "such as step:30,60,80"),
                               ({"schedule": "step:2,1"}, "ascending"),
                               ({"schedule": "linear"}, "--schedule"),
                               ({"warmup": 2, "schedule": "cosine"}, "leaves none of the 1 epochs"),
                               ({"optimizer": "adamw,nesterov"}, "adamw has the settings beta1, beta2, eps, not \"nesterov\""),
                               ({"config": RECIPES / "goyal.toml", "epochs": 3},
                                r"with .*goyal\.toml: --schedule step:30,60,80: the epochs are not all before the end, at 3"),
                               ({"sync_batch_norm": True, "wire": "bf16"}, "--sync-batch-norm does not go with --wire, .* fp32"),
                               ({"accumulate": 0}, "--accumulate"),
                               ({"clip_norm": 1, "defer": 0.5}, "--defer does not go with --clip-norm"),
                               ({"ema": 1}, "--ema"),
                               ({"lookahead": "5"}, "--lookahead: expected steps:decay, such as 5:0.77"),
                               ({"lookahead": "5:1"}, "the decay must be below 1"),
                               ({"lookahead": "5:0.5", "ema": 0.9}, "--ema does not go with --lookahead"),
                               ({"lookahead": "5:0.5", "strategy": "local"}, "--strategy local does not support --lookahead"),
                               ({"views": "two"}, "--views")):
            with self.subTest(options):
                result = run(*self.training(self.folder / "out", **options))
                self.assertEqual(result.status, 2, str(result))
                self.assertEqual(len(result.err.splitlines()), 1, str(result))
                self.assertRegex(result.err, names)


class Recipes(helper.ProgramTest):
    """The published settings in scripts/recipes, on images of a few pixels or short windows, and a smaller network."""

    RULES = {"goyal": "0.1 x 8192/256 = 3.2, warm-up 5 epochs from 0.1, then x 0.1 after epochs 30, 60, 80",
             "he-cifar": "0.1, then x 0.1 after epochs 82, 123",
             "cifar10": "1.5, warm-up 2.3 epochs from 0.3, then to 0.105 at epoch 10 as (1 - x)^1",
             "bag-of-tricks": "0.1 x 1024/256 = 0.4, warm-up 5 epochs from 0, then cosine to 0 at epoch 120",
             "lars": "10, warm-up 5 epochs from 0, then to 0.0001 at epoch 90 as (1 - x)^2",
             "deit": "0.0005 x 1024/512 = 0.001, warm-up 5 epochs from 1e-06, then cosine to 1e-05 at epoch 300",
             "fashion": "0.05, warm-up 0.5 epochs from 0, then cosine to 0 at epoch 8",
             "nanogpt": "0.0006, warm-up 0.109 epochs from 0, then cosine to 6e-05 at epoch 33",
             "nanogpt-cpu": "0.001, warm-up 0.0765 epochs from 0, then cosine to 0.0001 at epoch 2",
             "llmc": "0.0006, warm-up 0.0371 epochs from 0, then cosine to 0 at epoch 1"}
    OF_TEXT = ("nanogpt", "nanogpt-cpu", "llmc")
    LENGTH = 8

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.color = helper.write_data(cls.shared / "color.h5", train=120, test=40, size=12, channels=3)
        source, cls.text_data = cls.shared / "text.txt", cls.shared / "text.h5"
        source.write_text("".join(f"{number} squared is {number * number}.\n" for number in range(400)))
        result = run("import", cls.text_data, source, "--from", "text", "--hold-out", 0.1)
        assert result.status == 0, result

    def recipe(self, name, *options, **how):
        out = self.folder / name
        data = ["--data", self.color, "--model", "resnet20"]
        if name == "cifar10":
            data = ["--data", self.color, "--image", 32]
        if name in self.OF_TEXT:
            data = ["--data", self.text_data, "--model", "gpt-tiny", "--length", self.LENGTH]
        self.succeed("train", "--config", RECIPES / f"{name}.toml", *data, "--out", out, "--max-steps", 1, *options, **how)
        return out, tomllib.loads((out / "config.toml").read_text())

    @staticmethod
    def text(value):
        """A setting, where numbers in quotes are those without."""
        return [str(element) for element in value] if isinstance(value, list) else str(value)

    def test_every_recipe_trains_by_its_rule(self):
        self.assertEqual({file.stem for file in RECIPES.iterdir()}, set(self.RULES))
        for name, rule in self.RULES.items():
            with self.subTest(name):
                options = ["--global-batch", 8192] if name == "goyal" else []  # as published, of 32 images on 256 ranks
                out, config = self.recipe(name, *options)
                self.assertEqual(json.loads((out / "results.json").read_text())["learning_rate"], rule)
                settings = tomllib.loads((RECIPES / f"{name}.toml").read_text())
                for option in (*(["model"] if name != "cifar10" else []), *(["batch"] if options else []), *(["length"] if name in self.OF_TEXT else [])):
                    del settings[option]
                for option, value in settings.items():
                    self.assertEqual(self.text(config[option]), self.text(value), option)

    def test_a_configuration_repeats_its_recipe(self):
        out, config = self.recipe("goyal", "--batch", 20, "--epochs", 7, "--schedule", "step:5,6", ranks=2)
        self.assertEqual((config["batch"], config["epochs"], config["schedule"], config["optimizer"]),
                         (20, 7, "step:5,6", ["sgd", "momentum=0.9", "nesterov"]))
        again = self.folder / "again"
        self.succeed("train", "--config", out / "config.toml", "--out", again, ranks=2)
        self.assert_same_state(out / "checkpoint.h5", again / "checkpoint.h5")

    def test_another_optimizer_needs_another_rate(self):
        options = ["train", "--config", RECIPES / "fashion.toml", "--data", self.data, "--out", self.folder / "out",
                   "--optimizer", "adamw", "--max-steps", 1]
        result = run(*options)
        self.assertEqual(result.status, 2, str(result))
        self.assertRegex(result.err,
                         r"fashion\.toml:\d+: lr is for the optimizer sgd: with --optimizer adamw also give --lr; see")
        self.succeed(*options, "--lr", 0.001)


class Step(helper.ProgramTest):
    """resnet20 gets images of its own, smaller and in color: 4 steps of 35 an epoch, the last one of 15."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.color = helper.write_data(cls.shared / "color.h5", train=120, test=40, size=12, channels=3)

    def training(self, out, model="mlp", **options):
        data = self.color if model == "resnet20" else self.data
        return super().training(out, model, **{"data": data, **options})

    def train(self, name, ranks=0, **options):
        return super().train(self.folder / name, ranks=ranks, **{"epochs": 2, **STEPS, **options})

    def checkpoint(self, name):
        return self.folder / name / "checkpoint.h5"

    def test_parts_of_a_step_are_the_step(self):
        self.train("whole", model="lenet")
        for ranks, parts, options in ((0, 4, {}), (2, 3, {"bucket": "16KiB"}), (3, 100, {"bucket": "16KiB", "defer": 0.6})):
            with self.subTest(ranks=ranks, parts=parts):
                name = f"{ranks}-{parts}"
                self.train(name, ranks=ranks, model="lenet", accumulate=parts, **options)
                self.assertLess(self.farthest(self.checkpoint("whole"), self.checkpoint(name)), 2e-5)
                accuracy = [json.loads((self.folder / n / "results.json").read_text())["epochs"][0]["train_accuracy"]
                            for n in ("whole", name)]
                self.assertAlmostEqual(*accuracy, delta=1e-6)

    def test_parts_with_batch_norm_resume_bit_identically(self):
        options = {"ranks": 2, "model": "resnet20", "accumulate": 3, "optimizer": "lars", "max_steps": 6}
        self.train("whole", **options)
        self.train("parts", **{**options, "max_steps": 3})
        self.train("parts", **options, resume=True)
        self.assert_same_state(self.checkpoint("whole"), self.checkpoint("parts"))

    def test_clipping(self):
        results = {ranks: self.train(f"{ranks}", ranks=ranks, clip_norm=0.5) for ranks in (0, 2, 3)}
        for ranks in (2, 3):
            self.assertLess(self.farthest(self.checkpoint("0"), self.checkpoint(f"{ranks}")), 2e-5)
        norms = [epoch["gradient_norm"] for epoch in results[2]["epochs"]]
        for norm, other in zip(norms, (epoch["gradient_norm"] for epoch in results[0]["epochs"]), strict=True):
            self.assertLess(norm["mean"], norm["largest"])
            self.assertGreater(norm["largest"], 0.5)
            self.assertAlmostEqual(norm["mean"], other["mean"], delta=1e-3 * norm["mean"])
        free = self.train("free", ranks=2)
        self.assertNotIn("gradient_norm", free["epochs"][0])
        self.train("wide", ranks=2, clip_norm=1e6)
        self.assert_same_state(self.checkpoint("free"), self.checkpoint("wide"))
        self.assertGreater(self.farthest(self.checkpoint("free"), self.checkpoint("2")), 1e-3)

    def test_averaged_weights(self):
        options = {"ranks": 2, "model": "resnet20", "ema": 0.9}
        results = self.train("whole", **options)
        state = read_checkpoint(self.checkpoint("whole"))
        self.assertEqual(state["average"].keys(), state["parameters"].keys())
        self.assertIn("bn1.running_mean", state["average"])
        self.train("parts", **{**options, "max_steps": 3, "bucket": "16KiB"})
        self.train("parts", **options, bucket="16KiB", defer=0.5, resume=True)
        self.assert_same_state(self.checkpoint("whole"), self.checkpoint("parts"))
        self.train("raw", **{**options, "ema": None})
        raw = read_checkpoint(self.checkpoint("raw"))
        for name, values in raw["parameters"].items():
            self.assertEqual(values.tobytes(), state["parameters"][name].tobytes(), f"averaging changed {name}")
        losses = {weights: self.evaluate("whole", weights=weights)["loss"] for weights in ("ema", "raw")}
        self.assertAlmostEqual(results["test_loss"], losses["ema"], delta=1e-5)
        self.assertNotAlmostEqual(losses["ema"], losses["raw"], delta=1e-3)
        self.assertEqual(self.evaluate("whole")["weights"], "ema")
        self.assertEqual(self.evaluate("raw")["weights"], "raw")

    def test_whitened_patches_and_lookahead(self):
        options = {"ranks": 2, "model": "airbench94", "data": self.color, "image": 32, "whiten": "whiten", "lookahead": "2:0.5",
                   "augment": "flip,alternate,shift=2", "views": "mirror", "eval_every": "end"}
        results = self.train("whole", **options)
        self.train("parts", **options, max_steps=3)
        self.train("parts", **options, resume=True)
        self.assert_same_state(self.checkpoint("whole"), self.checkpoint("parts"))
        self.train("begun", **options, max_steps=1)
        patches = [read_checkpoint(self.checkpoint(name))["parameters"]["whiten.weight"] for name in ("begun", "whole")]
        np.testing.assert_array_equal(*patches)
        np.testing.assert_array_equal(patches[0][:12], -patches[0][12:])
        views = {"image": 32}
        self.assertAlmostEqual(self.evaluate("whole", views="mirror", **views)["loss"], results["test_loss"], delta=1e-5)
        self.assertNotAlmostEqual(self.evaluate("whole", **views)["loss"], results["test_loss"], delta=1e-4)

    def test_averages_that_are_not_there(self):
        self.train("raw", max_steps=1)
        self.train("averaged", max_steps=1, ema=0.99)
        for name, ema, names in (("raw", 0.99, "made without --ema or --lookahead: resume it without"), ("averaged", None, "made with --ema or --lookahead: ")):
            result = run(*self.training(self.folder / name, ema=ema, resume=True, **STEPS))
            self.assertEqual(result.status, 1, str(result))
            self.assertRegex("\n".join(result.messages), names)
        result = run("eval", "--data", self.data, "--checkpoint", self.checkpoint("raw"), "--weights", "ema")
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex("\n".join(result.messages), "no averaged weights")

    def test_synchronized_batch_norm(self):
        # One step: a sum that rounds otherwise may let a ReLU pass or not, and batch norm makes more of that with each. A
        # single one changes the gradients of the layers below it by 2 % (with AVX2), but not those of the last layer,
        # which depend on the statistics of all.
        options = {"model": "resnet20", "max_steps": 1}
        self.train("one", **options)
        for ranks, more in ((2, {}), (3, {"bucket": "16KiB", "defer": 0.5}), (4, {"all_reduce": "message-ring"})):
            with self.subTest(ranks=ranks):
                self.train(f"{ranks}", ranks=ranks, sync_batch_norm=True, **options, **more)
                self.assertLess(self.farthest(self.checkpoint("one"), self.checkpoint(f"{ranks}")), 0.1)
                self.assertLess(self.head_distance("one", f"{ranks}"), 1e-4)
        self.train("apart", ranks=2, **options)
        self.assertGreater(self.farthest(self.checkpoint("one"), self.checkpoint("apart")), 0.5)
        self.assertGreater(self.head_distance("one", "apart"), 0.01)

    def head_distance(self, a, b):
        """The distance of the gradients of the last layer after one step."""
        first, second = (helper.read_checkpoint(self.checkpoint(name))["velocity"]["fc.weight"] for name in (a, b))
        return np.linalg.norm(first - second) / np.linalg.norm(first)

    def test_synchronized_batch_norm_wants_all_ranks(self):
        for model, names, options in (
                ("resnet20", r"--sync-batch-norm: in steps of 3 images some of 4 ranks have 1 and others 0", {"global_batch": 117}),
                ("resnet20", r"in steps of 15 images some of 4 ranks have 4 and others 3, which cannot be split into 4 parts",
                 {"global_batch": 35, "accumulate": 4})):
            result = run(*self.training(self.folder / "out", model=model, sync_batch_norm=True, **options), ranks=4)
            self.assertEqual(result.status, 1, str(result))
            self.assertEqual(len(result.messages), 1, str(result))
            self.assertRegex(result.messages[0], names)

    def test_options_for_other_models(self):
        for model, names, option in (("mlp", "no batch norm", "sync_batch_norm"),
                                     ("lenet", "--zero-init: lenet has no residual blocks", "zero_init")):
            for ranks in (0, 2):
                with self.subTest(model=model, ranks=ranks):
                    result = run(*self.training(self.folder / "out", model=model, **{option: True}), ranks=ranks)
                    self.assertEqual(result.status, 1, str(result))
                    self.assertEqual(len(result.messages), 1, str(result))
                    self.assertIn(names, result.messages[0])

    def evaluate(self, name, **options):
        file = self.folder / "eval.json"
        arguments = [item for option, value in options.items() for item in (f"--{option}", value)]
        self.succeed("eval", "--data", self.color, "--checkpoint", self.checkpoint(name), "--json", file, *arguments)
        return json.loads(file.read_text())


if __name__ == "__main__":
    helper.main()
