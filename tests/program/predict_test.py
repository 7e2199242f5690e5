"""`annulus predict`: the classes of images, and reports of unreadable ones."""
import json
import re

import h5py
import numpy as np

import helper
from input_test import png, write_pngs


class Predict(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gray = cls.shared / "gray"
        result = helper.run("train", "--data", cls.data, "--model", "lenet", "--epochs", 2, "--batch", 20, "--lr", 0.02,
                            "--out", cls.gray)
        if result.status != 0:
            raise AssertionError(result)

    def predict(self, *arguments, ranks=0, status=0):
        """The lines of JSON, and the result."""
        file = self.folder / "predicted.jsonl"
        result = helper.run("predict", *arguments, "--jsonl", file, ranks=ranks)
        self.assertEqual(result.status, status, result)
        return [json.loads(line) for line in file.read_text().splitlines()], result

    def save(self, name, image):
        """As an RGB PNG file, even for gray images."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(np.repeat(image, 3 // image.shape[2], axis=2)))
        return file

    def assert_same_top(self, some, others):
        self.assertEqual(len(some), len(others))
        for one, other in zip(some, others):
            self.assertEqual([entry["class"] for entry in one["top"]], [entry["class"] for entry in other["top"]])
            np.testing.assert_allclose([entry["probability"] for entry in one["top"]],
                                       [entry["probability"] for entry in other["top"]], rtol=1e-4)

    def test_accuracy_equals_evaluation(self):
        self.succeed("eval", "--data", self.data, "--checkpoint", self.gray, "--json", self.folder / "eval.json")
        evaluated = json.loads((self.folder / "eval.json").read_text())
        alone = None
        for ranks in (0, 2, 3):
            with self.subTest(ranks=ranks):
                found, _ = self.predict(self.data, "--checkpoint", self.gray, "--batch", 16, ranks=ranks)
                self.assertEqual([line["image"] for line in found],
                                 [f"{self.data}: test sample {n}" for n in range(100)])
                self.assertEqual(sum(line["label"] == line["top"][0]["class"] for line in found),
                                 evaluated["correct"])
                alone = alone or found
                self.assert_same_top(found, alone)

    def test_the_confusions_of_an_evaluation_are_those_of_the_predictions(self):
        """On any number of ranks, and the numbers of each class follow from them."""
        file, expected = self.folder / "eval.json", np.zeros((10, 10), int)
        for found in self.predict(self.data, "--checkpoint", self.gray)[0]:
            label, top = (int(name.removeprefix("class ")) for name in (found["label"], found["top"][0]["class"]))
            expected[label, top] += 1
        for ranks in (0, 3):
            result = self.succeed("eval", "--checkpoint", self.gray, "--data", self.data, "--per-class", "--json", file,
                                  ranks=ranks)
            found = json.loads(file.read_text())
            np.testing.assert_array_equal(found["confusion"], expected)
        for number, one in enumerate(found["classes"]):
            images, predicted, correct = expected[number].sum(), expected[:, number].sum(), expected[number, number]
            self.assertEqual((one["class"], one["images"]), (f"class {number}", images))
            self.assertEqual(one["recall"], correct / images)
            self.assertEqual(one["precision"], correct / predicted if predicted else None)
            self.assertEqual(one["f1"], 2 * correct / (images + predicted))
            self.assertRegex(result.out, rf"(?m)^ +{images} .* {100 * correct / images:.2f} % .* class {number}$")
        wrong = expected - np.diag(np.diag(expected))
        if wrong.any():
            self.assertRegex(result.out, rf"(?m)^ +{wrong.max()} of class \d classified as class \d$")

    def test_other_splits(self):
        found, _ = self.predict(f"{self.data}:train", self.data, "--checkpoint", self.gray, ranks=2)
        with h5py.File(self.data) as file:
            labels = [f"class {n}" for split in ("train", "test") for n in file[f"{split}/labels"][()]]
        self.assertEqual([line["label"] for line in found], labels)

    def test_probabilities_of_all_classes_sum_to_one(self):
        found, result = self.predict(self.data, "--checkpoint", self.gray / "checkpoint.h5", "--top", 12)
        for line in found:
            probabilities = [entry["probability"] for entry in line["top"]]
            self.assertEqual(len({entry["class"] for entry in line["top"]}), 10)
            self.assertEqual(probabilities, sorted(probabilities, reverse=True))
            self.assertAlmostEqual(sum(probabilities), 1, places=9)
        first = found[0]["top"][0]
        self.assertEqual(result.out.splitlines()[0].split(",")[0],
                         f"{self.data}: test sample 0: {first['class']} {100 * first['probability']:.1f} %")

    def test_summary(self):
        result = self.predict(self.data, "--checkpoint", self.gray)[1]
        found = self.succeed("eval", "--data", self.data, "--checkpoint", self.gray).out
        correct = re.search(r"accuracy (\S+) %.* (\d+) of 100 images", found)
        self.assertRegex(result.err.splitlines()[-1], rf"^100 images in [\d.]+ s, accuracy {correct[1]} %: {correct[2]} of "
                                                      r"100 with a known class$")

    def test_names_cannot_control_a_terminal(self):
        data, out = helper.write_data(self.folder / "data.h5", 40, 10), self.folder / "out"
        with h5py.File(data, "a") as file:
            file.attrs["classes"] = [f"\x1b]0;class {n}\x07\nsecond" for n in range(10)]
        self.train(out, data=data, max_steps=1)
        result = self.predict(data, "--checkpoint", out)[1]
        self.assertIn(r"\x1b]0;class ", result.out)
        self.assertIn(r"\x07\nsecond", result.out)
        self.assertEqual(len(result.out.splitlines()), 10)
        self.assertNotRegex(result.out + result.err, "[\x00-\x09\x0b-\x1f\x7f]")

    def test_files_and_data_file_give_the_same_results(self):
        with h5py.File(self.data) as file:
            files = [self.save(f"some/{n:02}.png", image) for n, image in enumerate(file["test/images"][:20])]
        expected = self.predict(self.data, "--checkpoint", self.gray)[0][:20]
        for ranks in (0, 3):
            found, _ = self.predict(self.folder / "some", "--checkpoint", self.gray, "--batch", 4, ranks=ranks)
            self.assertEqual([line["image"] for line in found], [str(file) for file in files])
            self.assertNotIn("label", found[0])
            self.assert_same_top(found, expected)
        # In the given order, whatever comes between.
        found, _ = self.predict(files[3], self.data, files[1], files[0], "--checkpoint", self.gray)
        self.assertEqual(len(found), 103)
        self.assert_same_top([found[0], *found[-2:]], [expected[3], expected[1], expected[0]])

    def test_images_are_cropped_as_in_evaluation(self):
        """Evaluation crops a margin of encoded images."""
        data = write_pngs(self.folder / "encoded.h5", {"train": (60, 1), "test": (12, 2)})
        out = self.folder / "out"
        self.train(out, data=data, model="cnn", image=24)
        pixels, _ = helper.images(12, 2, channels=3)
        for number, image in enumerate(pixels):
            self.save(f"images/{number:02}.png", image[:28 - number % 3])  # as in write_pngs()
        expected, _ = self.predict(data, "--checkpoint", out)
        found, _ = self.predict(self.folder / "images", "--checkpoint", out)
        self.assert_same_top(found, expected)

    def test_bad_images_are_named_and_the_others_classified(self):
        images, _ = helper.images(9, 3)
        good = [self.save(f"images/{number}.png", image) for number, image in enumerate(images)]
        (self.folder / "images/2.png").write_bytes(good[0].read_bytes()[:200])
        (self.folder / "images/5.png").write_text("not an image\n")
        (self.folder / "images/8.png").write_bytes(b"")
        missing = self.folder / "missing.jpg"
        for ranks in (0, 3):
            with self.subTest(ranks=ranks):
                found, result = self.predict(self.folder / "images", missing, "--checkpoint", self.gray, ranks=ranks,
                                             status=1)
                self.assertEqual([line["image"] for line in found], [str(file) for file in (*good, missing)])
                self.assertEqual([n for n, line in enumerate(found) if "error" in line], [2, 5, 8, 9])
                self.assertEqual(len(result.messages), 5)
                for message, name in zip(result.messages, ("2.png", "5.png", "8.png", "missing.jpg")):
                    self.assertRegex(message, f"skipped: .*{name}: ")
                self.assertIn("4 of 10 images could not be read", result.messages[4])
                self.assertEqual(len(result.out.splitlines()), 6)

    def test_misuse_is_refused(self):
        def complaint(*arguments):
            result = helper.run("predict", *arguments)
            self.assertNotEqual(result.status, 0)
            self.assertEqual(len(result.messages), 1, result)
            return result.err

        (self.folder / "empty").mkdir()
        colours = helper.write_data(self.folder / "colours.h5", 9, 9, channels=3)
        self.assertIn("empty: has no images", complaint(self.folder / "empty", "--checkpoint", self.gray))
        self.assertIn("nowhere.h5", complaint(self.folder / "nowhere.h5", "--checkpoint", self.gray))
        self.assertIn("/validation: missing", complaint(f"{self.data}:validation", "--checkpoint", self.gray))
        self.assertIn("images of 3 channels, but the network of ",
                      complaint(colours, "--checkpoint", self.gray))
        self.assertIn("no averaged weights", complaint(self.data, "--checkpoint", self.gray, "--weights", "ema"))
        self.assertIn("--top", complaint(self.data, "--checkpoint", self.gray, "--top", 0))


if __name__ == "__main__":
    helper.main()
