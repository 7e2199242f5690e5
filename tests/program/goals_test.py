"""Runs that end when an evaluation is good enough, or no longer improves, and rates that follow evaluations."""
import json

import h5py

import helper
from helper import read_checkpoint


class Goals(helper.ProgramTest):
    def results(self, out):
        return json.loads((out / "results.json").read_text())

    def test_a_run_ends_when_its_goal_is_reached(self):
        whole = self.train(self.folder / "whole", epochs=6, lr=0.0005)["evaluations"]
        for name in ("accuracy", "loss", "top5"):
            with self.subTest(name):
                values = [evaluation["test_" + name] for evaluation in whole]
                # Of the second evaluation; those of loss fall.
                better = (lambda a, b: a <= b) if name == "loss" else (lambda a, b: a >= b)
                expected = next(i for i, value in enumerate(values) if better(value, values[1]))
                out = self.folder / name
                goal = f"{name}={values[1]!r}".removesuffix(".0")
                result = self.succeed(*self.training(out, epochs=6, lr=0.0005, until=goal))
                self.assertRegex(result.out, rf"stopped after {25 * (expected + 1)} steps: --until {name}=")
                results = self.results(out)
                self.assertEqual((results["status"], len(results["evaluations"])), ("complete", expected + 1))
                self.assertEqual(results["ended_by"], f"--until {goal}")
        # The run is complete, unless another goal is set.
        again = self.training(self.folder / "loss", epochs=6, lr=0.0005, resume=True)
        result = self.succeed(*again, "--until", f"loss={whole[1]['test_loss']!r}")
        self.assertRegex(result.out, "nothing to do: .* 2 of 6 epochs; to continue, change --until loss=")
        self.succeed(*again)
        self.assertEqual(read_checkpoint(self.folder / "loss/checkpoint.h5")["attributes"]["step"], 150)
        result = self.succeed(*self.training(self.folder / "missed", lr=1e-6, until="accuracy=1"))
        self.assertRegex(result.out, "--until accuracy=1 was not reached")
        self.assertNotIn("ended_by", self.results(self.folder / "missed"))

    def test_a_run_ends_when_it_no_longer_improves(self):
        # A rate of which weights hardly change: no evaluation is better than the first one.
        out = self.folder / "out"
        result = self.succeed(*self.training(out, lr=1e-12, epochs=9, patience=2), ranks=2)
        self.assertRegex(result.out, r"stopped after 39 steps: --patience 2")
        self.assertEqual(len(self.results(out)["epochs"]), 3)
        self.assertEqual(read_checkpoint(out / "best.h5")["attributes"]["step"], 13)
        # 500 images by 20 on each of 2 ranks.
        result = self.succeed(*self.training(self.folder / "short", epochs=3, max_steps=20), ranks=2)
        self.assertRegex(result.out, r"\nepoch 2/3 \(to image 280\)  loss .*\n(  rank .*\n)?stopped after 20 steps: --max-steps 20\n")
        self.assertEqual(self.results(self.folder / "short")["ended_by"], "--max-steps 20")
        self.succeed(*self.training(self.folder / "even", epochs=2, max_steps=26), ranks=2)
        self.assertNotIn("ended_by", self.results(self.folder / "even"))
        # By the loss, each is better than the one before.
        self.train(self.folder / "loss", lr=1e-3, epochs=4, patience=1, best_by="loss")
        self.assertEqual(read_checkpoint(self.folder / "loss/best.h5")["attributes"]["epoch"], 4)

    def test_the_rate_is_reduced_on_a_plateau_also_when_resumed(self):
        options = {"lr": 1e-12, "epochs": 6, "schedule": "plateau:1", "lr_factor": 0.5, "batch": None,
                   "global_batch": 50}
        rates = [epoch["learning_rate"] for epoch in self.train(self.folder / "whole", ranks=2, **options)["epochs"]]
        self.assertEqual([round(rate * 1e12, 6) for rate in rates], [1, 1, 1, 0.5, 0.5, 0.25])
        for ranks in (2, 3):
            parts = self.folder / f"parts-{ranks}"
            for epochs in (2, 4, 6):
                results = self.train(parts, ranks=ranks, **{**options, "epochs": epochs}, resume=True)
            self.assertEqual([epoch["learning_rate"] for epoch in results["epochs"]], rates)
        self.assert_same_state(self.folder / "whole/checkpoint.h5", self.folder / "parts-2/checkpoint.h5")

    def test_misuse_is_refused(self):
        few = self.folder / "few.h5"
        with h5py.File(self.data, "r") as data, h5py.File(few, "w") as file:
            for split in ("train", "test"):
                file[f"{split}/images"] = data[f"{split}/images"][()]
                file[f"{split}/labels"] = data[f"{split}/labels"][()] % 5
            for name in ("mean", "deviation"):
                file.attrs[name] = data.attrs[name]
            file.attrs["classes"] = [f"class {n}" for n in range(5)]
        for status, options, message in (
                (2, {"until": "accuracy"}, "--until: 'accuracy' is not a goal: give accuracy=0.93, top5=0.99, "
                 "f1=0.8, recall=0.8, mae=0.5, perplexity=20, bits_per_byte=1.2 or loss=0.2"),
                (2, {"until": "acuracy=0.9"}, "--until: 'acuracy' is not one of accuracy, top5, f1, recall, mae, perplexity, bits_per_byte, "
                 "loss"),
                (2, {"until": "accuracy=93"}, "'accuracy=93': accuracy is a share of all images, up to 1"),
                (2, {"until": "loss=-1"}, "is not a goal"),
                (2, {"best_by": "los"}, "did you mean loss"),
                (2, {"schedule": "plateau", "patience": 11}, "--patience 11 ends the run before --schedule plateau:10"),
                (1, {"until": "top5=0.5", "data": few}, "top5 requires more than 5 classes, and the data has 5")):
            with self.subTest(options):
                result = helper.run(*self.training(self.folder / "out", **options))
                self.assertEqual(result.status, status, str(result))
                self.assertRegex(result.err, message)


if __name__ == "__main__":
    helper.main()
