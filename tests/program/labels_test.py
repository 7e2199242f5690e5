"""Labels that are several classes or real numbers: imported, trained, evaluated, predicted and exported."""
import json
import shutil

import h5py
import numpy as np
import onnx

import helper
import onnx_numpy

SIZE = 12


def values_of(count, seed):
    """Images of a bright square, and its row and column, scaled to -1..1."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 64, (count, SIZE, SIZE), dtype=np.uint8)
    places = random.integers(0, SIZE - 3, (count, 2))
    for image, (row, column) in zip(pixels, places):
        image[row:row + 4, column:column + 4] += np.uint8(160)
    return pixels, (places / 4 - 1).astype(np.float32)


def classes_of(count, seed):
    """Images any of whose four quarters are bright, and which of them are."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 96, (count, SIZE, SIZE), dtype=np.uint8)
    bright = random.integers(0, 2, (count, 4), dtype=np.uint8)
    half = SIZE // 2
    for image, label in zip(pixels, bright):
        for quarter in np.flatnonzero(label):
            row, column = half * (quarter // 2), half * (quarter % 2)
            image[row:row + half, column:column + half] += np.uint8(96)
    return pixels, bright


def macro_f1(predicted, actual):
    both = (predicted & actual).sum(0)
    return (2 * both / (predicted.sum(0) + actual.sum(0))).mean()


class Labels(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.values = cls.imported("values", values_of, ["row", "column"])
        cls.several = cls.imported("several", classes_of, ["a", "b", "c", "d"])

    @classmethod
    def imported(cls, name, make, names, train=600, test=103):
        source = cls.shared / f"{name}-source"
        source.mkdir()
        for split, count, seed in (("train", train, 1), ("test", test, 2)):
            pixels, labels = make(count, seed)
            np.save(source / f"{split}_images.npy", pixels)
            np.save(source / f"{split}_labels.npy", labels)
        output = cls.shared / f"{name}.h5"
        result = helper.import_arrays(output, source, "--from", "npy", "--classes", ",".join(names), "--hold-out", 0.1)
        assert result.status == 0, result
        cls.imports = {**getattr(cls, "imports", {}), name: result.out}
        return output

    def predicted(self, run, data):
        file = self.folder / "predicted.jsonl"
        result = self.succeed("predict", data, "--checkpoint", run, "--jsonl", file, ranks=2)
        return [json.loads(line) for line in file.read_text().splitlines()], result

    def evaluated(self, run, data, *options, ranks=0):
        file = self.folder / "evaluated.json"
        result = self.succeed("eval", "--data", data, "--checkpoint", run, "--json", file, *options, ranks=ranks)
        return json.loads(file.read_text()), result

    def exported(self, run):
        file = self.folder / "model.onnx"
        self.succeed("export", file, "--checkpoint", run)
        return onnx.load(file)

    def test_imported_files(self):
        self.assertIn("train: 600 images of 12x12, 2 values for each image; 60 of them held out", self.imports["values"])
        self.assertIn("600 images of 12x12, 4 classes, any number for each image", self.imports["several"])
        for data, attribute, names, make in ((self.values, "values", ["row", "column"], values_of),
                                             (self.several, "classes", ["a", "b", "c", "d"], classes_of)):
            with h5py.File(data, "r") as file:
                self.assertEqual([helper.text(name) for name in file.attrs[attribute]], names)
                pixels, labels = make(103, 2)
                np.testing.assert_array_equal(file["test/images"][..., 0], pixels)
                self.assertEqual(file["test/labels"].dtype, labels.dtype)
                np.testing.assert_array_equal(file["test/labels"], labels)
                self.assertEqual(file["validation/labels"].shape, (60, len(names)))

    def test_regression(self):
        out = self.folder / "run"
        options = {"data": self.values, "epochs": 12, "lr": 0.05, "batch": 16}
        results = self.train(out, ranks=2, **options)
        self.assertLess(results["test_mae"], 0.15)
        self.assertLess(results["epochs"][-1]["train_mae"], 0.15)
        best = min(results["evaluations"], key=lambda one: one["validation_mae"])
        self.assertEqual(helper.read_checkpoint(out / "best.h5")["attributes"]["step"], best["step"])
        records = helper.metrics(out)
        self.assertEqual({record["kind"] for record in records if "mae" in record}, {"train", "epoch", "validation", "test"})
        self.assertFalse(any("accuracy" in record for record in records))

        # Evaluation, prediction and ONNX agree, each image once on any number of ranks.
        found = [self.evaluated(out / "best.h5", self.values, ranks=ranks)[0] for ranks in (0, 2, 3)]
        for one in found:
            self.assertEqual(one["count"], 103)
            self.assertAlmostEqual(one["mae"], results["test_mae"], delta=1e-6)
            self.assertAlmostEqual(one["loss"], results["test_loss"], delta=1e-6)
        predicted, result = self.predicted(out / "best.h5", self.values)
        pixels, labels = values_of(103, 2)
        ours = np.array([[entry["value"] for entry in line["values"]] for line in predicted])
        self.assertEqual([entry["name"] for entry in predicted[0]["values"]], ["row", "column"])
        np.testing.assert_array_equal([[entry["value"] for entry in line["label"]] for line in predicted], labels)
        self.assertAlmostEqual(np.abs(ours - labels).mean(), results["test_mae"], delta=1e-6)
        self.assertAlmostEqual(((ours - labels) ** 2).mean(), results["test_loss"], delta=1e-6)
        self.assertRegex(result.out.splitlines()[0], r"sample 0: row -?[\d.]+, column -?[\d.]+$")
        self.assertIn(f"MAE {results['test_mae']:.4f}: 103 with known values", result.err)
        model = self.exported(out / "best.h5")
        outputs = onnx_numpy.run(model, pixels[..., None])
        self.assertEqual(list(outputs), ["values"])
        np.testing.assert_allclose(outputs["values"], ours, atol=1e-4)
        self.assertEqual(json.loads({p.key: p.value for p in model.metadata_props}["values"]), ["row", "column"])

        # Its step can be measured.
        self.succeed("bench", "step", "--from", out, "--batch", 8, "--seconds", 0.1, "--json", self.folder / "step.json")

    def test_a_regression_resumes_to_the_same_bits_and_ends_at_its_goal(self):
        options = {"data": self.values, "lr": 0.05, "batch": 16}
        whole, parts = self.folder / "whole", self.folder / "parts"
        evaluations = self.train(whole, ranks=2, epochs=4, **options)["evaluations"]
        for epochs in (2, 4):
            self.train(parts, ranks=2, epochs=epochs, resume=True, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        goal = self.folder / "goal"
        second = evaluations[1]["validation_mae"]
        results = self.train(goal, ranks=2, epochs=4, until=f"mae={second!r}", best_by="loss", **options)
        expected = next(i for i, one in enumerate(evaluations) if one["validation_mae"] <= second)
        self.assertEqual(len(results["evaluations"]), expected + 1)
        self.assertTrue(results["ended_by"].startswith("--until mae="))
        shown = self.succeed("checkpoint", "show", goal).out
        self.assertRegex(shown, r"evaluated   MAE \d\.\d{4}: 60 images, loss \d\.\d{4}")

    def test_several_classes(self):
        out = self.folder / "run"
        results = self.train(out, ranks=2, data=self.several, epochs=8, lr=0.05, batch=16)
        self.assertGreater(results["test_f1"], 0.95)
        self.assertGreater(results["test_accuracy"], 0.9)
        best = max(results["evaluations"], key=lambda one: one["validation_f1"])
        self.assertEqual(helper.read_checkpoint(out / "best.h5")["attributes"]["step"], best["step"])
        predicted, result = self.predicted(out / "best.h5", self.several)
        pixels, labels = classes_of(103, 2)
        names = np.array(["a", "b", "c", "d"])
        self.assertEqual([line["label"] for line in predicted], [list(names[label > 0]) for label in labels])
        ours = np.array([[name in line["classes"] for name in names] for line in predicted])
        exact = (ours == labels).all(1).mean()
        self.assertAlmostEqual(exact, results["test_accuracy"], delta=1e-9)
        self.assertAlmostEqual(macro_f1(ours, labels > 0), results["test_f1"], delta=1e-9)
        self.assertIn(f"accuracy {100 * exact:.2f} %", result.err)
        # Labels of other classes say nothing about predictions.
        renamed = self.folder / "renamed.h5"
        shutil.copy(self.several, renamed)
        with h5py.File(renamed, "r+") as file:
            file.attrs["classes"] = ["a", "b", "c", "e"]
        result = self.succeed("predict", renamed, "--checkpoint", out / "best.h5", "--data-changed")
        self.assertRegex(result.err, r"103 images in [\d.]+ s$")
        found = [self.evaluated(out / "best.h5", self.several, "--per-class", ranks=ranks)[0] for ranks in (0, 3)]
        for one in found:
            self.assertEqual((one["count"], one["f1"], one["accuracy"]), (103, results["test_f1"], results["test_accuracy"]))
            self.assertEqual([entry["images"] for entry in one["classes"]], list(labels.sum(0)))
            recall = (ours & (labels > 0)).sum(0) / labels.sum(0)
            np.testing.assert_allclose([entry["recall"] for entry in one["classes"]], recall)
            self.assertAlmostEqual(one["recall"], recall.mean(), delta=1e-9)
            self.assertNotIn("confusion", one)
        outputs = onnx_numpy.run(self.exported(out / "best.h5"), pixels[..., None])
        np.testing.assert_array_equal(outputs["probabilities"] > 0.5, ours)
        # The loss is that of PyTorch's BCEWithLogitsLoss.
        x = outputs["logits"].astype(np.float64)
        self.assertAlmostEqual((np.logaddexp(0, x) - labels * x).mean(), results["test_loss"], delta=1e-5)

    def refused(self, status, text, *arguments):
        result = helper.run(*arguments)
        self.assertEqual((result.status, len(result.messages)), (status, 1), str(result))
        self.assertRegex(result.messages[0], text)

    def test_what_does_not_fit_the_labels_is_refused(self):
        for text, data, options in (
                ("--loss softmax is not for these labels, real numbers: use mse", self.values, {"loss": "softmax"}),
                ("--loss mse is not for .*, any number of classes for each image: use binary", self.several, {"loss": "mse"}),
                ("--loss mse is not for .*, one class for each image: use softmax or binary", self.data, {"loss": "mse"}),
                ("--augment mixup: requires one class for each image, but the labels are real numbers", self.values,
                 {"augment": "auto,mixup=0.2"}),
                ("--augment cutmix: requires one class", self.several, {"augment": "auto,cutmix=1"}),
                ("--label-smoothing: requires one class", self.several, {"label_smoothing": 0.1}),
                ("--class-weights: requires one class", self.several, {"class_weights": "balanced"}),
                ("accuracy is not measured for labels that are real numbers: use mae or loss", self.values,
                 {"until": "accuracy=0.9"}),
                ("mae is not measured for .* one class for each image: use accuracy or top5 or loss", self.data,
                 {"best_by": "mae"}),
                ("validation images of other labels than the training images", self.values,
                 {"validation": self.several})):
            with self.subTest(text):
                self.refused(1, text, *self.training(self.folder / "out", **{"data": data, **options}))
        out = self.folder / "run"
        self.train(out, data=self.values, max_steps=1)
        for text, arguments in (
                ("its labels are one class for each image, but .* was trained with real numbers",
                 ("eval", "--data", self.data, "--checkpoint", out)),
                ("--per-class: there are no classes", ("eval", "--data", self.values, "--checkpoint", out, "--per-class")),
                ("several.h5: its labels are any number of classes", ("predict", self.several, "--checkpoint", out))):
            with self.subTest(text):
                self.refused(1, text, *arguments)

    def test_bad_labels(self):
        data = self.folder / "made.h5"
        shutil.copy(self.values, data)
        with h5py.File(data, "r+") as file:
            file["train/labels"][3, 0] = np.inf
        self.refused(1, r"made.h5: train sample 3: value '.*' of its label is inf",
                     *self.training(self.folder / "run", data=data))
        self.train(self.folder / "skipping", data=data, on_bad_sample="skip")


if __name__ == "__main__":
    helper.main()
