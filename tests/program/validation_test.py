"""Validation images: they choose the best checkpoint, and the test images are evaluated once, at the end."""
import json
import shutil

import h5py

import helper


def with_validation(path, train=400, validation=60, test=100, inverted=False):
    """A data file with a validation split; if inverted, its images are of other classes than their labels."""
    helper.write_data(path, train, test)
    with h5py.File(path, "r+") as file:
        pixels, labels = helper.images(validation, 3)
        file["validation/images"] = pixels
        file["validation/labels"] = (labels + 1) % 10 if inverted else labels
    return path


class Validation(helper.ProgramTest):
    def kinds(self, out):
        return [record["kind"] for record in helper.metrics(out) if record["kind"] != "train"]

    def evaluated(self, data, split, checkpoint):
        file = self.folder / "eval.json"
        self.succeed("eval", "--data", data, "--split", split, "--checkpoint", checkpoint, "--json", file)
        return json.loads(file.read_text())

    def test_the_test_images_are_evaluated_once_with_the_best_weights(self):
        data, out = with_validation(self.folder / "data.h5"), self.folder / "out"
        result = self.succeed(*self.training(out, data=data, epochs=3, keep=1), ranks=2)
        self.assertRegex(result.out, r"data.h5: 400 training, 60 validation and 100 test images of 28x28x1, 10 classes")
        self.assertRegex(result.out, r"epoch 3/3 .* validation loss \d\.\d+  validation accuracy \d+\.\d+ %")
        results = json.loads((out / "results.json").read_text())
        self.assertEqual(self.kinds(out), ["validation", "epoch"] * 3 + ["test"])
        self.assertEqual([set(name for name in epoch if "_accuracy" in name) for epoch in results["epochs"]],
                         [{"train_accuracy", "validation_accuracy"}] * 3)
        self.assertEqual(results["validation_accuracy"], results["epochs"][-1]["validation_accuracy"])
        best = max(results["evaluations"], key=lambda e: (e["validation_accuracy"], -e["step"]))
        self.assertEqual(results["test_step"], best["step"])
        again = self.evaluated(data, "test", out / "best.h5")
        self.assertEqual((again["step"], again["accuracy"]), (best["step"], results["test_accuracy"]))
        self.assertEqual(self.evaluated(data, "validation", out / "best.h5")["accuracy"], best["validation_accuracy"])
        # A complete run only prints its results; if it was killed before the test images were evaluated, they are.
        result = self.succeed(*self.training(out, data=data, epochs=3, keep=1, resume=True))
        self.assertRegex(result.out, rf"test accuracy {100 * results['test_accuracy']:.2f} %, with the best weights")
        untested = {name: value for name, value in results.items() if not name.startswith("test_")}
        (out / "results.json").write_text(json.dumps({**untested, "status": "running"}))
        again = self.train(out, ranks=2, data=data, epochs=3, keep=1, resume=True)
        for name in ("status", "test_accuracy", "test_loss", "test_step", "validation_accuracy", "epochs"):
            self.assertEqual(again[name], results[name], name)

    def test_the_best_checkpoint_is_that_of_the_validation_images(self):
        # Labels that contradict those of the training images: the less is learnt, the better.
        data, out = with_validation(self.folder / "data.h5", inverted=True), self.folder / "out"
        results = self.train(out, data=data, epochs=4, lr=0.001)
        validation = [epoch["validation_accuracy"] for epoch in results["epochs"]]
        self.assertEqual(helper.read_checkpoint(out / "best.h5")["attributes"]["epoch"],
                         1 + validation.index(max(validation)))
        self.assertLess(results["test_step"], 80)
        self.assertEqual(self.evaluated(data, "test", out / "best.h5")["accuracy"], results["test_accuracy"])
        self.assertGreater(self.evaluated(data, "test", out / "checkpoint.h5")["accuracy"], results["test_accuracy"])

    def test_validation_images_in_their_own_file(self):
        other = helper.write_data(self.folder / "other.h5", 10, 70)  # its test split is used
        result = self.succeed(*self.training(self.folder / "out", validation=other, max_steps=1))
        self.assertRegex(result.out, "500 training, 70 validation and 100 test images")
        with h5py.File(other, "r+") as file:
            del file["test"]
        only = self.folder / "only.h5"
        shutil.copy(self.data, only)
        with h5py.File(only, "r+") as file:
            del file["test"]
        out = self.folder / "no-test"
        result = self.succeed(*self.training(out, data=only, validation=other, max_steps=1))
        self.assertRegex(result.out, "500 training and 10 validation images")
        self.assertFalse([name for name in json.loads((out / "results.json").read_text()) if name.startswith("test_")])
        with h5py.File(other, "r+") as file:
            file.attrs["classes"] = [f"class {n}" for n in range(11)]
        for validation, message in ((other, "other.h5: validation images of other classes than the training images"),
                                    (self.data, "--validation .*data.h5: also a file of --data")):
            result = helper.run(*self.training(self.folder / "refused", validation=validation))
            self.assertEqual(result.status, 1, str(result))
            self.assertRegex(result.messages[0], message)

    def test_data_without_validation_and_test_images_are_only_trained(self):
        data, out = helper.write_data(self.folder / "data.h5"), self.folder / "out"
        with h5py.File(data, "r+") as file:
            del file["test"]
        result = self.succeed(*self.training(out, data=data), ranks=2)
        self.assertEqual(result.out.count("  evaluation  none: "), 1, str(result))
        self.assertIn(f"  evaluation  none: {data} has no validation or test samples; import again with --hold-out 0.1, or "
                      "give another data file with --validation FILE\n", result.out)
        refused = helper.run(*self.training(self.folder / "refused", data=data, until="accuracy=0.5"), ranks=2)
        self.assertEqual((refused.status, len(refused.messages)), (1, 1), str(refused))
        self.assertIn("data.h5: has no validation or test samples, which --until needs: import again with --hold-out 0.1, "
                      "or give another data file with --validation FILE", refused.messages[0])
        self.assertFalse((self.folder / "refused").exists())

    def test_no_evaluation_leaves_the_training_as_it_is(self):
        evaluated, out = self.folder / "evaluated", self.folder / "out"
        self.train(evaluated, data=self.data, epochs=2)
        self.train(out, data=self.data, epochs=1, eval_every="none")
        result = self.succeed(*self.training(out, data=self.data, epochs=2, eval_every="none", resume=True))
        self.assertIn("  evaluation  none: --eval-every none\n", result.out)
        self.assert_same_state(evaluated / "checkpoint.h5", out / "checkpoint.h5")
        results = json.loads((out / "results.json").read_text())
        self.assertEqual((results["status"], results["evaluations"]), ("complete", []))
        self.assertFalse((out / "best.h5").exists())
        done = self.succeed(*self.training(out, data=self.data, epochs=2, eval_every="none", resume=True))
        self.assertNotIn("test ", done.out)
        self.assertIn("nothing to do: this run is complete", done.out)
        evaluated_now = self.succeed(*self.training(out, data=self.data, epochs=2, resume=True))  # only the evaluation is missing
        self.assertIn("test accuracy", evaluated_now.out)
        self.assertTrue((out / "best.h5").exists())
        for option, value in (("validation", "other.h5"), ("until", "loss=1"), ("patience", 2), ("eval_steps", 1),
                              ("schedule", "plateau"), ("best_by", "loss"), ("export_best", "best.safetensors")):
            with self.subTest(option=option):
                refused = helper.run(*self.training(self.folder / "refused", data=self.data, eval_every="none",
                                                    **{option: value}))
                name = "--" + option.replace("_", "-") + (" plateau" if option == "schedule" else "")
                self.assertEqual(refused.status, 2, str(refused))
                self.assertIn(f"--eval-every none does not go with {name}, which needs evaluations: remove one of them",
                              refused.messages[0])

    def test_other_validation_images_are_noticed_on_resuming(self):
        out = self.folder / "out"
        self.train(out, data=self.data)
        other = helper.write_data(self.folder / "other.h5", 10, 70)
        result = helper.run(*self.training(out, validation=other, epochs=2, resume=True))
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], "differs in the images that are evaluated: test before, validation now")


if __name__ == "__main__":
    helper.main()
