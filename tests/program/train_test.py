"""Training: every model, several numbers of ranks, the output files."""
import json
import math

import helper
from helper import read_checkpoint

LEDGER = ["input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"]


class Train(helper.ProgramTest):
    def check_results(self, results, ranks, epochs):
        self.assertEqual(results["ranks"], ranks)
        self.assertEqual(len(results["epochs"]), epochs)
        for epoch in results["epochs"]:
            self.assertTrue(math.isfinite(epoch["train_loss"]) and epoch["train_loss"] > 0)
            self.assertTrue(0 <= epoch["test_accuracy"] <= 1)
        self.assertEqual(results["test_accuracy"], results["epochs"][-1]["test_accuracy"])
        self.assertGreater(results["train_images_per_second"], 0)
        ledger = results["ledger"]
        self.assertGreater(ledger["compute"], 0)
        for part in LEDGER[:-1]:
            self.assertGreaterEqual(ledger[part], 0, part)
        self.assertAlmostEqual(sum(ledger[part] for part in LEDGER), ledger["wall"], delta=1e-6 * ledger["wall"])

    def test_every_model_trains(self):
        for model in ("mlp", "lenet", "cnn", "resnet20"):
            with self.subTest(model):
                out = self.folder / model
                self.check_results(self.train(out, ranks=2, model=model), ranks=2, epochs=1)
                state = read_checkpoint(out / "checkpoint.h5")
                self.assertEqual(helper.text(state["attributes"]["model"]), model)
                self.assertEqual(state["attributes"]["step"], 13)  # 500 images, 40 a step: the last one is short

    def test_any_number_of_ranks(self):
        for ranks in (0, 1, 2, 3, 7):
            with self.subTest(ranks=ranks):
                # 14 x 35 + 10: in the last step of seven ranks some have one image and some have two.
                results = self.train(self.folder / str(ranks), ranks=ranks, global_batch=35)
                self.check_results(results, ranks=max(ranks, 1), epochs=1)

    def test_fewer_images_than_ranks_in_the_last_step(self):
        results = self.train(self.folder / "out", ranks=7, global_batch=71)  # 7 x 71 + 3: four ranks have none
        self.check_results(results, ranks=7, epochs=1)

    def test_learns(self):
        results = self.train(self.folder / "out", ranks=2, model="lenet", epochs=6)
        losses = [epoch["train_loss"] for epoch in results["epochs"]]
        self.assertLess(losses[-1], 0.3 * losses[0])
        self.assertGreater(results["test_accuracy"], 0.9)

    def test_mpi_all_reduce_trains_the_same(self):
        ring, mpi = self.folder / "ring", self.folder / "mpi"
        self.train(ring, ranks=2, all_reduce="ring", bucket="64KiB")
        self.train(mpi, ranks=2, all_reduce="mpi", bucket="1MiB")
        # Two summands have one order only, whatever the algorithm and the buckets.
        self.assert_same_state(ring / "checkpoint.h5", mpi / "checkpoint.h5")

    def test_repeated_runs_are_bit_identical(self):
        for name in ("a", "b"):
            self.train(self.folder / name, ranks=3, model="lenet")
        self.assert_same_state(self.folder / "a" / "checkpoint.h5", self.folder / "b" / "checkpoint.h5")

    def test_seed_matters(self):
        for seed in (1, 2):
            self.train(self.folder / str(seed), seed=seed, max_steps=1)
        self.assertGreater(self.farthest(self.folder / "1/checkpoint.h5", self.folder / "2/checkpoint.h5"), 0.1)

    def test_configuration_round_trip(self):
        first, second = self.folder / "first", self.folder / "second"
        self.train(first, ranks=2, model="lenet", weight_decay=0.001, lr=0.03, bucket="128KiB", max_steps=5)
        self.succeed("train", "--config", first / "config.toml", "--out", second, ranks=2)
        self.assert_same_state(first / "checkpoint.h5", second / "checkpoint.h5")
        # The command line takes precedence over the file.
        third = self.folder / "third"
        self.succeed("train", "--config", first / "config.toml", "--out", third, "--max-steps", 3, ranks=2)
        self.assertEqual(read_checkpoint(third / "checkpoint.h5")["attributes"]["step"], 3)

        def settings(out):
            return [line for line in (out / "config.toml").read_text().splitlines() if not line.startswith("out")]
        self.assertEqual(settings(first), settings(second))

    def test_eval_agrees_with_training(self):
        out = self.folder / "out"
        results = self.train(out, ranks=2, model="cnn", epochs=2)
        for ranks in (0, 3):
            file = self.folder / f"eval-{ranks}.json"
            self.succeed("eval", "--data", self.data, "--checkpoint", out / "checkpoint.h5", "--json", file,
                         ranks=ranks)
            found = json.loads(file.read_text())
            self.assertEqual(found["count"], 100)
            self.assertAlmostEqual(found["accuracy"], found["correct"] / found["count"])
            self.assertAlmostEqual(found["accuracy"], results["test_accuracy"])
            self.assertTrue(math.isfinite(found["loss"]))


if __name__ == "__main__":
    helper.main()
