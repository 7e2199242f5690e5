"""scripts/import-arrays: Parquet files of Hugging Face, and HDF5 files of one image each."""
import argparse
import base64
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np
import PIL.Image

import helper
from import_test import encoded, picture, stored_images

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PYTHON = SCRIPTS.parent / "build/peers/pyarrow/bin/python"  # of scripts/setup --parquet
sys.path.append(str(SCRIPTS))
from importers import parquet  # noqa: E402
from importers.hand_over import Archives  # noqa: E402
from importers.source import Batch, Refused, Sample, Samples, visible_files  # noqa: E402

NAMES = ["cat", "ant", "dog"]
# Writes files of rows [image, path, label] with pyarrow; the last argument: the schema's metadata.
WRITER = """
import base64, json, sys, pyarrow as pa, pyarrow.parquet as pq
files, metadata = json.load(sys.stdin)
for path, rows in files.items():
    images = [None if image is None and name is None else {"bytes": image and base64.b64decode(image), "path": name} for image, name, _ in rows]
    labels = [label for *_, label in rows]
    table = pa.table({"image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), "label": labels})
    table = table.replace_schema_metadata({"huggingface": metadata} if metadata else None)
    if path.endswith(".arrow"):
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    else:
        pq.write_table(table, path, row_group_size=7)
"""


class SamplesTest(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.source, self.output = self.folder / "source", self.folder / "data.h5"
        self.source.mkdir()

    def run_script(self, *options, output="data.h5"):
        """In a process of its own, whose output is not this one's."""
        return subprocess.run([helper.IMPORT_ARRAYS, self.folder / output, self.source, *map(str, options)], capture_output=True,
                              text=True, env={**os.environ, "ANNULUS": helper.ANNULUS})

    def do_import(self, *options):
        done = self.run_script(*options)
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stderr, r"\d+ images read, \d+ images/s  [\d.]+ MB/s")
        self.assertEqual([path.name for path in self.folder.glob(".*")], [])  # the archives are gone
        return done

    def skipped(self):
        lines = (self.folder / "data.h5.skipped.txt").read_text().splitlines()
        return dict(line.removeprefix(f"{self.source}/").split("\t") for line in lines)


class Hdf5Files(SamplesTest):
    def write(self, name, **content):
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            for key, value in content.items():
                if key.startswith("attr_"):
                    file.attrs[key[5:]] = value
                else:
                    file[key] = value

    def expect(self, split, expected, classes):
        """`expected`: pixels (N x height x width x channels) and labels."""
        with h5py.File(self.output) as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], classes)
            stored = sorted((label, np.asarray(PIL.Image.open(io.BytesIO(image))).tobytes())
                            for label, image in stored_images(file[split]))
        self.assertEqual(stored, sorted((label, pixels.tobytes()) for pixels, label in expected))

    def test_labels_by_dataset_attribute_or_folder(self):
        images = [np.asarray(picture(seed, 10, 12)) for seed in range(4)]
        forms = (lambda path, image, label: self.write(f"{path}.h5", image=image, label=label),
                 lambda path, image, label: self.write(f"{path}.h5", data=np.moveaxis(image / 255, -1, 0), attr_label=NAMES[label]),
                 lambda path, image, label: self.write(f"{NAMES[label]}/{path}.hdf5", x=image))
        for form, (write, classes) in enumerate(zip(forms, (["0", "1", "2"], sorted(NAMES), sorted(NAMES)))):
            with self.subTest(form):
                self.source = self.folder / f"form-{form}"
                labels = [0, 1, 2, 0]
                for number, (image, label) in enumerate(zip(images, labels)):
                    write(f"{number}", image, label)
                done = self.do_import("--std", "1,1,1")
                self.assertIn(f"{self.source}: read with --from hdf5", done.stdout)
                if form > 0:
                    labels = [sorted(NAMES).index(NAMES[label]) for label in labels]
                self.expect("train", zip(images, labels), classes)

    def test_splits_sizes_and_bad_files(self):
        image = np.asarray(picture(1, 10, 12))
        for split, count in (("train", 6), ("val", 2)):
            for number in range(count):
                self.write(f"{split}/{NAMES[number % 2]}/{number}.h5", image=image)
        bad = {"train/cat/text.h5": "cannot read as HDF5", "train/cat/none.h5": "no dataset has an image: label (scalar object)",
               "train/cat/four.h5": "an image of 4x5x4 uint8; supported are 1 or 3 channels",
               "train/cat/normalized.h5": "values from -1 to 1", "train/cat/number.h5": "its label is 1, but the first files have names",
               "train/cat/empty.h5": "not a class", "val/cat/two.h5": "which dataset has the image? a (4x5 uint8), b (4x5 uint8)"}
        self.write("train/cat/none.h5", label="cat")
        self.write("train/cat/empty.h5", image=h5py.Empty("f"), label=h5py.Empty("f"))
        self.write("train/cat/four.h5", image=np.zeros((4, 5, 4), np.uint8))
        self.write("train/cat/normalized.h5", image=np.float32([[-1, 1]]))
        self.write("train/cat/number.h5", image=image, label=1)
        self.write("val/cat/two.h5", a=image[:4, :5, 0], b=image[:4, :5, 0])
        (self.source / "train/cat/text.h5").write_text("this is no HDF5")
        done = self.do_import("--size", "8x8", "--channels", 1)
        self.assertIn("train: 6 images of 8x8, 2 classes, 6 skipped", done.stdout)
        self.assertIn("test: 2 images of 8x8, 2 classes, 1 skipped", done.stdout)
        skipped = self.skipped()
        self.assertEqual(set(skipped), set(bad))
        for name, reason in bad.items():
            self.assertIn(reason, skipped[name])
        (self.folder / "own.h5").write_text("not an import's")
        done = self.run_script(output="own.h5")
        self.assertEqual(done.stderr, f"import-arrays: {self.folder}/own.h5: exists, and is no data file that an import has written; "
                                      "add --overwrite to replace it\n")
        done = self.run_script("--on-bad-sample", "fail")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"import-arrays: .*train/cat/\w+\.h5: ")
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_file_with_the_whole_data_set(self):
        images, labels = helper.images(30, 1, size=12)
        self.write("all.h5", X_train=images, y_train=labels, X_test=images[:9] / 255, y_test=labels[:9])
        helper.import_arrays(self.output, self.source / "all.h5")
        with h5py.File(self.output) as file:
            np.testing.assert_array_equal(file["train/images"][()], images)
            np.testing.assert_array_equal(file["test/images"][()], images[:9])
            np.testing.assert_array_equal(file["test/labels"][()], labels[:9])
        for split, count in (("train", 30), ("test", 9)):
            self.write(f"parts/{split}.h5", images=images[:count], labels=labels[:count])
        self.output.unlink()
        helper.import_arrays(self.output, self.source / "parts")
        with h5py.File(self.output) as file:
            np.testing.assert_array_equal(file["train/images"][()], images)
            np.testing.assert_array_equal(file["test/labels"][()], labels[:9])
        shutil.rmtree(self.source / "parts")
        (self.source / "link.h5").symlink_to("gone.h5")
        self.assertIn("link.h5: No such file", helper.import_arrays(self.output, self.source).messages[0])
        (self.source / "link.h5").unlink()
        self.write("all.h5", X_train=images)
        self.assertIn(": has no train labels among all/X_train; name them with --label-key", helper.import_arrays(self.output, self.source).messages[0])

    def test_labels_that_are_not_plain(self):
        image = np.asarray(picture(1, 10, 12))
        for number in range(2):
            self.write(f"{number}.h5", image=image, Label=number, meta=number, attr_target=number)
        done = self.run_script()
        self.assertIn("which is the label? Label, attribute target of /; name it with --label-key", done.stderr)
        self.do_import("--label-key", "Label", "--std", "1,1,1")
        self.expect("train", [(image, 0), (image, 1)], ["0", "1"])
        (self.source / "train").mkdir()
        self.assertEqual(self.run_script().stderr, f"import-arrays: {self.source}/train: has no files *.h5 or *.hdf5\n")
        (self.source / "train").rmdir()
        self.assertEqual(self.run_script("--label-key", "Label", output="none/data.h5").stderr,
                         f"import-arrays: {self.folder}/none: no such folder\n")


class VisibleFiles(unittest.TestCase):
    def test_links_are_followed(self):
        with tempfile.TemporaryDirectory() as folder:
            source, other = pathlib.Path(folder) / "source", pathlib.Path(folder) / "other"
            for path in (source / ".hidden", source / "a", other):
                path.mkdir(parents=True)
                (path / "0.npy").touch()
            (source / "b").symlink_to(other)
            self.assertEqual([str(path.relative_to(source)) for path in visible_files(source)], ["a/0.npy", "b/0.npy"])
            (other / "up").symlink_to(source)
            with self.assertRaisesRegex(Refused, "b/up: a link to a folder that it lies in"):
                list(visible_files(source))


class ArchivesOfAnInterruptedImport(unittest.TestCase):
    def test_are_written_again_if_their_files_have_changed(self):
        with tempfile.TemporaryDirectory() as folder:
            folder, source = pathlib.Path(folder) / "archives", pathlib.Path(folder) / "source"
            source.write_text("as it was")
            labels, read = list(range(1001)), []

            def samples():
                read.append(len(labels))
                return (Sample(b"x", label, "has no image" if label == 1000 else "") for label in labels)

            def written(columns):
                batch = Batch("b", [source], samples, lambda number: f"row {number}")
                archives = Archives(folder, Samples({"train": [batch]}, columns=columns), False)
                archives.write()
                return {pathlib.Path(path).name: problems for path, (_, problems) in archives.places.items()}
            expected = {"b-000000000.tar": {}, "b-000001000.tar": {"1000": "has no image"}}
            self.assertEqual(written(("a",)), expected)
            self.assertEqual(written(("a",)), expected)
            self.assertEqual(read, [1001])
            self.assertEqual(written(("b",)), expected)
            with self.assertRaisesRegex(Refused, "row 1000: has no image"):
                Archives(folder, Samples({"train": [Batch("b", [source], samples, lambda number: f"row {number}")]}, columns=("b",)), True).write()
            read.pop()
            source.write_text("as it is now")
            labels = labels[:5]
            self.assertEqual(written(("b",)), {"b-000000000.tar": {}})
            self.assertEqual(read, [1001, 1001, 5])
            self.assertEqual([path.name for path in folder.glob("train/*.tar")], ["b-000000000.tar"])
            labels = []
            with self.assertRaisesRegex(Refused, f"{source}: has no images, nor have other files of train images"):
                written(("c",))


class ParquetColumns(unittest.TestCase):
    """The logic that needs no pyarrow."""

    def splits(self, *names):
        source = pathlib.Path("/source")
        found = parquet.splits_of(source, [source / name for name in names])
        return {split: [str(path.relative_to(source)) for path in files] for split, files in found.items()}

    def test_files_of_splits(self):
        for expected, names in (
                ({"train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
                  "test": ["data/validation-00000-of-00001.parquet"]},
                 ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet",
                  "data/validation-00000-of-00001.parquet"]),
                ({"train": ["plain_text/train/0000.parquet"], "test": ["plain_text/test/0000.parquet"]},
                 ["plain_text/train/0000.parquet", "plain_text/test/0000.parquet"]),
                ({"train": ["0000.parquet", "trainer.parquet"]}, ["trainer.parquet", "0000.parquet"])):
            self.assertEqual(self.splits(*names), expected)
        for expected, names in (("has files of test images, such as test-0.parquet, but none of training images", ["test-0.parquet"]),
                                ("source/train-00000-of-00002: missing", ["train-00001-of-00002.parquet"]),
                                ("source/test-00001-of-00003: missing", ["train.parquet", "test-00000-of-00003-1a.parquet", "test-00002-of-00003-2b.parquet"]),
                                ("several data sets: a, b; give the folder of one", ["a/train-0.parquet", "b/train-0.parquet"])):
            with self.assertRaisesRegex(Refused, expected):
                self.splits(*names)

    def test_columns(self):
        features = {"label": {"_type": "ClassLabel", "names": NAMES}, "image": {"_type": "Image"}}
        for expected, columns, of, image, label in (
                (("image", "label", NAMES), {"image": "image", "label": "number", "id": "number"}, features, None, None),
                (("img", "fine", None), {"img": "image", "fine": "number", "coarse": "number"}, {}, None, "fine"),
                (("img", "label", None), {"img": "image", "gender": "number", "label": "name"}, {"gender": features["label"]}, None, None),
                (("content", "breed", None), {"content": "image", "breed": "name", "score": "double"}, {}, None, None),
                (("mask", "label", NAMES), {"image": "image", "mask": "image", "label": "number"}, features, "mask", None)):
            options = argparse.Namespace(image_key=image, label_key=label)
            self.assertEqual(parquet.choose_columns("f", columns, of, options), expected)
        for expected, columns, label in (
                ("f: no column of images; columns: text .name., label .number.", {"text": "name", "label": "number"}, None),
                ("which column has the labels.* columns: img .image., fine .number., coarse .number.; name it with --label-key",
                 {"img": "image", "fine": "number", "coarse": "number"}, None),
                ("no column of labels; columns: img .image., boxes .list<float>.", {"img": "image", "boxes": "list<float>"}, None),
                ("--label-key boxes: no such column of labels", {"img": "image", "boxes": "list<float>"}, "boxes")):
            with self.assertRaisesRegex(Refused, expected):
                parquet.choose_columns("f", columns, {}, argparse.Namespace(image_key=None, label_key=label))
        first = {"image": "image", "label": "number"}, features
        parquet.expect_same("g", "f", (first, first), first[0])
        for expected, second in (("g: column label is missing, but number in f", ({"image": "image"}, features)),
                                 ("g: column label is name, but number in f", ({**first[0], "label": "name"}, {})),
                                 ("g: column label has other class names than in f", (first[0], {"label": {"names": NAMES[::-1]}}))):
            with self.assertRaisesRegex(Refused, expected):
                parquet.expect_same("g", "f", (first, second), first[0])
        metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        self.assertEqual(parquet.features_of(metadata), features)
        for metadata in (None, {}, {b"huggingface": b"{"}, {b"huggingface": b"[]"}, {b"huggingface": b"{}"}):
            self.assertEqual(parquet.features_of(metadata), {})

    def test_samples(self):
        path = pathlib.Path(__file__)
        for expected, image, label in ((Sample(b"x", 3), {"bytes": b"x", "path": None}, 3), (Sample(b"x", "a"), b"x", "a"),
                                       (Sample(b"", 3, "has no image"), None, 3), (Sample(b"x", None, "has no label"), b"x", None),
                                       (Sample(path.read_bytes(), 1), {"bytes": None, "path": path.name}, 1),
                                       (Sample(b"", 1, "no.jpg: No such file or directory"), {"bytes": None, "path": "no.jpg"}, 1)):
            self.assertEqual(parquet.sample_of(path, image, label), expected)


@unittest.skipUnless(PYTHON.exists(), f"no pyarrow: scripts/setup --parquet installs it in {PYTHON.parents[1]}")
class ParquetFiles(SamplesTest):
    def write(self, files, classes=None):
        """`files`: {name: rows of (image or None, path, label)}."""
        def text(image):
            return None if image is None else base64.b64encode(image).decode()
        rows = {}
        for name, own in files.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            rows[str(self.source / name)] = [(text(image), path, label) for image, path, label in own]
        metadata = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": classes}}}}) if classes else None
        subprocess.run([PYTHON, "-c", WRITER], input=json.dumps([rows, metadata]), text=True, check=True)

    def test_files_of_a_data_set(self):
        images = [encoded(picture(seed), "PNG" if seed % 3 == 0 else "JPEG") for seed in range(40)]
        labels = [seed % 2 for seed in range(40)]
        rows = list(zip(images, [f"{seed}.jpg" for seed in range(40)], labels))
        bad = [(None, None, 1), (images[0], None, None), (images[1][:-60], None, 0), (None, "gone.jpg", 0), (b"text", None, 0)]
        (self.source / "README.md").write_text("---\nconfigs: []\n---\n")
        self.write({"data/train-00000-of-00002.parquet": rows[:18] + bad, "data/train-00001-of-00002.parquet": rows[18:30],
                    "data/validation-00000-of-00001.parquet": rows[30:], "data/test-00000-of-00001.parquet": [(images[0], None, -1)]}, NAMES)
        done = self.do_import("--ranks", 2)
        self.assertIn(f"{self.source}: read with --from parquet", done.stdout)
        self.assertIn("images of column image, labels of column label, 3 classes; 2 train files, 1 test files; 1 others are not read, such as test-00000-of-00001.parquet", done.stdout)
        self.assertRegex(done.stdout, r"train: 30 images of .*, 3 classes, encoded, .*, 5 skipped")
        with h5py.File(self.output) as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], NAMES)
            self.assertEqual(stored_images(file["train"]), list(zip(labels, images))[:30])
            self.assertEqual(stored_images(file["test"]), list(zip(labels, images))[30:])
        skipped = self.skipped()
        self.assertEqual([name for name in skipped], [f"data/train-00000-of-00002.parquet: row {18 + i}" for i in range(5)])
        self.assertEqual([reason.split(":")[0] for reason in skipped.values()],
                         ["has no image", "has no label", "a damaged JPEG image", "gone.jpg", "neither a JPEG nor a PNG image"])
        done = subprocess.run([helper.ANNULUS, "import", self.folder / "other.h5", self.source], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (
            1, f"annulus: {self.source}: *.parquet: read by scripts/import-arrays FILE SOURCE --from parquet\n"))

    def test_names_as_labels_and_arrow_files(self):
        rows = [(encoded(picture(seed)), None, NAMES[seed % 3]) for seed in range(9)]
        self.write({"train/data-00000-of-00001.arrow": rows, "test/data-00000-of-00001.arrow": [*rows[:2], (rows[0][0], None, "zebra")]})
        done = self.do_import()
        with h5py.File(self.output) as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], sorted(NAMES))
            self.assertEqual(stored_images(file["train"]), [(sorted(NAMES).index(label), image) for image, _, label in rows])
        self.assertEqual(self.skipped(), {"test/data-00000-of-00001.arrow: row 2": "'zebra' is not a class of the training images"})
        self.assertIn("test: 2 images", done.stdout)

    def test_a_damaged_file(self):
        self.write({"train.parquet": [(encoded(picture(seed)), None, 0) for seed in range(9)]})
        file = self.source / "train.parquet"
        file.write_bytes(file.read_bytes()[:-9])
        done = self.run_script()
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done)
        self.assertIn(f"import-arrays: {file}: ", done.stderr)


class WithoutPyarrow(SamplesTest):
    def test_is_named(self):
        (self.source / "pyarrow").mkdir()
        (self.source / "pyarrow/__init__.py").write_text("raise ImportError('none here')")
        (self.source / "train.parquet").write_text("")
        done = subprocess.run([sys.executable, "-c", f"""
import pathlib, runpy, sys
sys.path[:0] = [{str(self.source)!r}, {str(SCRIPTS)!r}]
from importers import parquet
parquet.PYTHON = pathlib.Path("/none")
sys.argv = ["import-arrays", "{self.output}", "{self.source}"]
runpy.run_path("{helper.IMPORT_ARRAYS}", run_name="__main__")
"""], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (
            1, "import-arrays: --from parquet requires pyarrow (none here): run scripts/setup --parquet, or start this script with a "
               "Python that has it: python3 scripts/import-arrays ...\n"))


if __name__ == "__main__":
    helper.main()
