"""scripts/import-arrays: MNIST's files, CIFAR's, NumPy's, and HDF5 files with arrays."""
import gzip
import os
import pathlib
import shutil
import struct
import subprocess
import types
import unittest.mock

import h5py
import numpy as np
import PIL.Image

import helper


def write_idx(folder, train, test, compress):
    """The four files of http://yann.lecun.com/exdb/mnist."""
    folder.mkdir()
    for name, (pixels, labels) in (("train", train), ("t10k", test)):
        for file, content in (
                (f"{name}-images-idx3-ubyte", struct.pack(">4i", 2051, *pixels.shape[:3]) + pixels.tobytes()),
                (f"{name}-labels-idx1-ubyte",
                 struct.pack(">2i", 2049, len(labels)) + labels.astype(np.uint8).tobytes())):
            if compress:
                (folder / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / file).write_bytes(content)


class ArraysTest(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.output = self.folder / "data.h5"

    def do_import(self, *arguments):
        result = helper.import_arrays(*arguments)
        self.assertEqual(result.status, 0, str(result))
        return result

    def refused(self, expected, *arguments, status=1):
        result = helper.import_arrays(*arguments)
        self.assertEqual((result.status, len(result.messages)), (status, 1), str(result))
        self.assertRegex(result.messages[0], expected)


class Idx(ArraysTest):
    def setUp(self):
        super().setUp()
        self.train_split, self.test_split = helper.images(200, 1), helper.images(50, 2)
        self.source = self.folder / "idx"

    def import_arguments(self, *more):
        return [self.output, self.source, "--from", "idx", *more]

    def test_plain_and_compressed(self):
        for compress in (False, True):
            with self.subTest(compress=compress):
                self.source, self.output = self.folder / f"idx-{compress}", self.folder / f"{compress}.h5"
                write_idx(self.source, self.train_split, self.test_split, compress)
                self.do_import(*self.import_arguments("--classes", "T-shirt/top,b,c,d,e,f,g,h,i,Ankle boot"))
                with h5py.File(self.output, "r") as file:
                    for split, (pixels, labels) in (("train", self.train_split), ("test", self.test_split)):
                        self.assertEqual(file[f"{split}/images"].dtype, np.uint8)
                        np.testing.assert_array_equal(file[f"{split}/images"][()], pixels)
                        np.testing.assert_array_equal(file[f"{split}/labels"][()], labels)
                    scaled = self.train_split[0] / 255  # of the training images alone
                    np.testing.assert_allclose(file.attrs["mean"], [scaled.mean()], rtol=1e-5)
                    np.testing.assert_allclose(file.attrs["deviation"], [scaled.std()], rtol=1e-3)
                    classes = [helper.text(name) for name in file.attrs["classes"]]
                self.assertEqual(classes, ["T-shirt/top", "b", "c", "d", "e", "f", "g", "h", "i", "Ankle boot"])
                # The program reads the file that it wrote.
                self.train(self.folder / f"run-{compress}", data=self.output, max_steps=1)

    def test_damage_on_the_disk_ends_training(self):
        write_idx(self.source, self.train_split, self.test_split, False)
        self.do_import(*self.import_arguments())
        whole = self.output.read_bytes()
        pixels = self.train_split[0]
        for place, expected in ((whole.index(pixels[5].tobytes()) + 9, r"data\.h5: .*damaged: bytes \d+ to \d+ of the file differ"),
                                (whole.index(b"deviation"), r"data\.h5: damaged: bytes 0 to \d+ of the file differ")):
            bad = bytearray(whole)
            bad[place] ^= 1
            self.output.write_bytes(bad)
            result = helper.run(*self.training(self.folder / "run", data=self.output, max_steps=30, global_batch=20), ranks=2)
            self.assertNotEqual(result.status, 0)
            self.assertRegex(result.messages[0], expected)
            self.assertIn("import again", result.messages[0])
        self.output.write_bytes(whole)
        with h5py.File(self.output, "r+") as file:  # a change on purpose
            file.attrs["mean"] = np.float32([0.25])
        self.train(self.folder / "run", data=self.output, max_steps=1)

    def test_class_names_from_a_file(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        names = pathlib.Path(__file__).resolve().parents[2] / "scripts/fashion-mnist.txt"
        self.do_import(*self.import_arguments("--classes-from", names))
        with h5py.File(self.output, "r") as file:
            classes = [helper.text(name) for name in file.attrs["classes"]]
        self.assertEqual((classes[0], classes[9], len(classes)), ("T-shirt/top", "Ankle boot", 10))
        (self.folder / "names.txt").write_text("a\n\nb\n")
        for file, names in (("none.txt", r"--classes-from: .*none\.txt: cannot read"),
                            ("names.txt", r"--classes-from: .*names\.txt: line 2 is empty")):
            result = helper.import_arrays(*self.import_arguments("--classes-from", self.folder / file))
            self.assertEqual(result.status, 2, str(result))
            self.assertRegex(result.err, names)

    def test_classes_without_names(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        self.do_import(*self.import_arguments())
        with h5py.File(self.output, "r") as file:
            classes = [helper.text(name) for name in file.attrs["classes"]]
        self.assertEqual(classes, [str(n) for n in range(10)])

    def fails(self, names, *more):
        """Fails with one line that names the cause; neither leaves a partial file nor changes an old one."""
        for old in (None, helper.write_data(self.shared / "old.h5", 2, 2, 4).read_bytes()):
            self.output.unlink(missing_ok=True)
            if old:
                self.output.write_bytes(old)
            self.refused(names, *self.import_arguments("--overwrite", *more))
            self.assertEqual(self.output.read_bytes() if self.output.exists() else None, old)
            self.assertLessEqual(set(self.folder.iterdir()), {self.source, self.output})

    def damage(self, name, change):
        write_idx(self.source, self.train_split, self.test_split, False)
        path = self.source / name
        path.write_bytes(change(path.read_bytes()))

    def test_bad_magic(self):
        self.damage("train-images-idx3-ubyte", lambda content: b"\0\0\x08\x07" + content[4:])
        self.fails("train-images-idx3-ubyte")

    def test_truncated(self):
        self.damage("t10k-images-idx3-ubyte", lambda content: content[:-1])
        self.fails("t10k-images-idx3-ubyte")

    def test_only_a_header(self):
        self.damage("t10k-labels-idx1-ubyte", lambda content: content[:6])
        self.fails("t10k-labels-idx1-ubyte")

    def test_fewer_labels_than_images(self):
        self.damage("train-labels-idx1-ubyte", lambda content: content[:4] + struct.pack(">i", 199) + content[8:-1])
        self.fails("train-labels-idx1-ubyte|train-images-idx3-ubyte")

    def test_truncated_gzip(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        path = self.source / "train-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        self.fails("train-images-idx3-ubyte")

    def test_missing_file(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        (self.source / "t10k-labels-idx1-ubyte.gz").unlink()
        self.fails("t10k-labels-idx1-ubyte")

    def test_missing_folder(self):
        self.fails(str(self.source))

    def test_too_few_class_names(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        self.fails("(?i)class|label", "--classes", "a,b,c")

    def test_a_users_file_is_kept(self):
        write_idx(self.source, self.train_split, self.test_split, False)
        self.assertNotIn("replaces", self.do_import(*self.import_arguments()).out)
        replaced = f"replaces {self.output} ({len(self.train_split[1]) + len(self.test_split[1])} images)\n"
        self.assertIn(replaced, self.do_import(*self.import_arguments("--hold-out", 0.1)).out)  # our own file
        self.output.write_text("mine")
        self.refused("data.h5: exists.*--overwrite", *self.import_arguments())
        self.assertEqual(self.output.read_text(), "mine")

    def test_the_same_samples_are_held_out_as_by_annulus_import(self):
        write_idx(self.source, self.train_split, self.test_split, False)
        self.do_import(*self.import_arguments("--hold-out", 0.2))
        for split, (pixels, labels) in (("train", self.train_split), ("val", self.test_split)):
            for number, (image, label) in enumerate(zip(pixels, labels)):
                (self.folder / f"png/{split}/{label}").mkdir(parents=True, exist_ok=True)
                PIL.Image.fromarray(image.reshape(28, 28)).save(self.folder / f"png/{split}/{label}/{number:03}.png")
        other = self.folder / "other.h5"
        self.succeed("import", other, self.folder / "png", "--from", "folder", "--store", "pixels", "--size", "28x28",
                     "--channels", 1, "--hold-out", 0.2)
        with h5py.File(self.output, "r") as ours, h5py.File(other, "r") as theirs:
            for split in ("train", "validation", "test"):
                self.assertEqual(*(sorted(image.tobytes() for image in file[split]["images"][()]) for file in (ours, theirs)))
            for name in ("mean", "deviation"):
                self.assertEqual(ours.attrs[name].tobytes(), theirs.attrs[name].tobytes())


def save(folder, split, images, labels):
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", labels)


class Numpy(ArraysTest):
    def arguments(self, *more):
        return [self.output, self.folder / "arrays", "--from", "npy", *more]

    def stored(self, split="train"):
        with h5py.File(self.output, "r") as file:
            return file[split]["images"][()], file[split]["labels"][()], dict(file.attrs)

    def test_arrays(self):
        for split, count in (("train", 5000), ("test", 10)):  # two blocks
            save(self.folder / "arrays", split, *helper.images(count, count, size=28, channels=3))
        self.do_import(*self.arguments())
        for split in ("train", "test"):
            images, labels, _ = self.stored(split)
            np.testing.assert_array_equal(images, np.load(self.folder / f"arrays/{split}_images.npy"))
            np.testing.assert_array_equal(labels, np.load(self.folder / f"arrays/{split}_labels.npy"))
        self.train(self.folder / "run", data=self.output, max_steps=1)

    def test_images_of_other_types_and_names(self):
        """As PyTorch (N x C x H x W, 0 to 1), Keras and scikit-learn have them: the same bytes are stored."""
        images, labels = helper.images(30, 2, size=12, channels=3)
        folder = self.folder / "arrays"
        for names, pixels in ((("X", "y"), (images / 255).astype(np.float32).transpose(0, 3, 1, 2)),
                              (("X_train", "y_train"), images / 255), (("x_train", "y_train"), images.astype(np.float64)),
                              (("train_images", "train_labels"), images.astype(np.int64))):
            with self.subTest(names):
                folder.mkdir()
                for name, array in zip(names, (pixels, labels)):
                    np.save(folder / f"{name}.npy", array)
                self.do_import(*self.arguments())
                np.testing.assert_array_equal(self.stored()[0], images)
                np.testing.assert_array_equal(self.stored()[1], labels)
                (folder / f"{names[1]}.npy").unlink()
                self.refused(f"arrays: has no train labels among {names[0]}; name them with --label-key", *self.arguments())
                shutil.rmtree(folder)
        folder.mkdir()
        self.refused("arrays: has no files .*npy", *self.arguments())

    def test_names_in_archives_and_folders(self):
        """As Keras, MedMNIST and people have them: a file for all, for each split, or for each array."""
        images, labels = helper.images(30, 2, size=12)
        folder = self.folder / "arrays"
        train, test = {"images": images, "labels": labels}, {"images": images[:9], "labels": labels[:9]}
        keras = {"x_train": images, "y_train": labels[:, None], "x_test": images[:9], "y_test": labels[:9, None]}
        for files in ({"mnist.npz": keras}, {"train.npz": train, "test.npz": test}, {"set_valid.npz": test, "set_train.npz": train},
                      {"test/X.npy": images[:9], "test/y.npy": labels[:9], "train/X.npy": images, "train/y.npy": labels},
                      {"data.npz": {"train/data": images, "train/target": labels, "val/data": images[:9], "val/target": labels[:9]}},
                      {"a.npz": {"trainImages": images, "train_image_labels": labels, "testImages": images[:9], "testTargets": labels[:9]}}):
            with self.subTest(list(files)):
                for name, arrays in files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    np.savez(folder / name, **arrays) if isinstance(arrays, dict) else np.save(folder / name, arrays)
                self.do_import(*self.arguments())
                for split, count in (("train", 30), ("test", 9)):
                    np.testing.assert_array_equal(self.stored(split)[0], images[:count])
                    np.testing.assert_array_equal(self.stored(split)[1], labels[:count])
                shutil.rmtree(folder)

    def test_arrays_are_named_by_keys(self):
        images, labels = helper.images(30, 2, size=12)
        folder = self.folder / "arrays"
        folder.mkdir()
        np.savez(folder / "a.npz", images, labels, labels[:5])
        self.refused("has no training images.*, but a/arr_0, a/arr_1, a/arr_2; name them with --image-key", *self.arguments())
        self.do_import(*self.arguments("--image-key", "arr_0", "--label-key", "arr_1"))
        np.testing.assert_array_equal(self.stored()[1], labels)
        np.savez(folder / "b.npz", X=images, y=labels, x=images)
        (folder / "a.npz").unlink()
        self.refused("which are the train images. b/X, b/x; name them with --image-key", *self.arguments())
        np.savez(folder / "b.npz", X=images, y=np.array([{}] * 30))
        self.refused("b.npz: y: no array of numpy's: Object arrays cannot be loaded", *self.arguments())
        (folder / "b.npz").write_bytes(b"PK\x03\x04 is none")
        self.refused("b.npz: no array", *self.arguments())

    def test_kinds_of_labels(self):
        images = helper.images(6, 1)[0]
        one_hot = np.eye(3, dtype=np.uint8)[[0, 2, 1, 0, 2, 1]]
        several = np.uint8([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
        for labels, expected, dtype, name in (
                (one_hot, one_hot.argmax(1), np.int32, "classes"), (one_hot.astype(float), one_hot.argmax(1), np.int32, "classes"),
                (several, several, np.uint8, "classes"), (several.astype(bool), several, np.uint8, "classes"),
                (np.arange(6) / 4, np.arange(6)[:, None] / 4, np.float32, "values"),
                (np.int8([3, 0, 1, 2, 3, 0]), np.int32([3, 0, 1, 2, 3, 0]), np.int32, "classes"),
                (np.uint64([3, 0, 1, 2, 3, 0]), np.int32([3, 0, 1, 2, 3, 0]), np.int32, "classes")):
            with self.subTest(labels.dtype):
                save(self.folder / "arrays", "train", images, labels)
                self.do_import(*self.arguments())
                stored, found, attributes = self.stored()
                np.testing.assert_array_equal(found, expected)
                self.assertEqual((found.dtype, name in attributes), (dtype, True))
                np.testing.assert_array_equal(stored, images)

    def test_bad_arrays(self):
        images, labels = helper.images(20, 1)
        values = np.ones((20, 2))
        nan, several = values.copy(), np.zeros((20, 3), np.int64)
        nan[7, 1], several[5, 2] = np.nan, 4
        for expected, pixels, array, options in (
                ("train_labels.npy: sample 7: value 1 is nan", images, nan, ()),
                ("sample 5: has 4 for class 2 in its label, which must be 0 or 1", images, several, ()),
                ("train_labels.npy: labels of shape 20x1x2 for 20 images", images, values[:, None], ()),
                ("labels of shape 19 for 20 images", images, labels[1:], ()),
                
                ("train_labels.npy: elements of type '<c8'", images, values.astype(np.complex64), ()),
                ("sample 3: has label -1", images, np.where(np.arange(20) == 3, -1, 1), ()),
                ("sample 3: has label 2, which none of the 2 classes has", images, np.where(np.arange(20) == 3, 2, 1), ("--classes", "a,b")),
                ("label 300, but there are only 20 images", images, np.full(20, 300), ()),
                ("--classes: 3 names for 2 classes", images, values * 2, ("--classes", "a,b,c")),
                ("--mean: 3 values for 1 channels", images, labels, ("--mean", "0,0,0")),
                ("--hold-out 0.001: no class has enough images", images, labels, ("--hold-out", 0.001)),
                ("same value", np.zeros_like(images), labels, ()),
                ("5 dimensions", images[None], labels, ()), ("2 channels", np.zeros((20, 2, 2, 2), np.uint8), labels, ()),
                ("must be uint8", images.astype(np.complex64), labels, ()),
                ("before it is normalized", images / 127.5 - 1, labels, ()),
                ("if these are pixels", images + 0.5, labels, ()),
                ("train_images.npy: has values that are not finite", np.where(images == images.max(), np.inf, images), labels, ()), ("has no images", images[:0], labels[:0], ())):
            with self.subTest(expected):
                save(self.folder / "arrays", "train", pixels, array)
                self.refused(expected, *self.arguments(*options))
                self.assertFalse(self.output.exists())
        save(self.folder / "arrays", "train", images, labels)
        save(self.folder / "arrays", "test", images[:, 1:], labels)
        self.refused("test_images.npy: image size differs", *self.arguments())
        save(self.folder / "arrays", "test", images, values)
        self.refused("test_labels.npy: labels differ from the training labels", *self.arguments())
        (self.folder / "arrays/test_images.npy").unlink()
        with unittest.mock.patch("shutil.disk_usage", return_value=types.SimpleNamespace(free=images.size - 1)):
            self.refused("data.h5: requires .* MB, but the disk has only .* MB free", *self.arguments())
        (self.folder / "arrays/train_images.npy").write_bytes(b"PK is none")
        self.refused("train_images.npy: no array", *self.arguments())
        (self.folder / "arrays/train_images.npy").unlink()
        os.mkfifo(self.folder / "arrays/train_images.npy")
        self.refused("train_images.npy: not a regular file", *self.arguments())


class OptionsOfTheProgram(ArraysTest):
    """Options for which the program writes the file, from the same images."""

    def do_import(self, *options, labels=None):
        images, own = helper.images(200, 1, size=20)
        save(self.folder / "arrays", "train", images, own if labels is None else labels)
        save(self.folder / "arrays", "test", images[:50], own[:50] if labels is None else labels[50:100])
        # Another process, whose output is not this one's.
        return subprocess.run([helper.IMPORT_ARRAYS, self.output, self.folder / "arrays", "--from", "npy", *map(str, options)],
                              capture_output=True, text=True, env={**os.environ, "ANNULUS": helper.ANNULUS})

    def read(self, pattern="data*.h5"):
        """The images and labels of all files of the import, by split, and the attributes of the first file."""
        files = [h5py.File(path, "r") for path in sorted(self.folder.glob(pattern))]
        found = {split: [np.concatenate([file[split][part][()] for file in files]) for part in ("images", "labels")]
                 for split in files[0]}
        return found, dict(files[0].attrs), len(files)

    def test_each_has_the_same_samples(self):
        self.assertEqual(self.do_import("--hold-out", 0.1).returncode, 0)
        whole, attributes, _ = self.read()
        self.output.unlink()
        for options, files in ((("--shards", 3), 3), (("--chunk", 16), 1), (("--size", "20x20", "--classes", "a,b,c,d,e,f,g,h,i,j"), 1)):
            with self.subTest(options):
                done = self.do_import("--hold-out", 0.1, *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                found, own, count = self.read()
                self.assertEqual((count, found.keys()), (files, whole.keys()))
                for split, (images, labels) in whole.items():
                    np.testing.assert_array_equal(found[split][0], images)
                    np.testing.assert_array_equal(found[split][1], labels)
                self.assertEqual([own[name].tobytes() for name in ("mean", "deviation")],
                                 [attributes[name].tobytes() for name in ("mean", "deviation")])
                for path in self.folder.glob("data*"):
                    path.unlink()
        self.assertEqual([path.name for path in self.folder.iterdir()], ["arrays"])

    def test_size(self):
        self.assertEqual(self.do_import("--size", "10x12").returncode, 0)
        self.assertEqual(self.read()[0]["train"][0].shape, (200, 10, 12, 1))

    def test_bad_labels_are_skipped(self):
        labels = helper.images(200, 1)[1]
        labels[[3, 7]] = -1
        done = self.do_import("--on-bad-sample", "skip", labels=labels)
        self.assertEqual(done.returncode, 0, done.stderr)
        np.testing.assert_array_equal(self.read()[0]["train"][1], np.delete(labels, [3, 7]))
        self.assertEqual((self.folder / "data.h5.skipped.txt").read_text().count("has label -1"), 2)

    def test_labels_that_are_no_class(self):
        done = self.do_import("--shards", 2, labels=np.ones(200))
        self.assertEqual((done.returncode, done.stderr), (
            1, "import-arrays: --size, --channels, --shards, --chunk, --on-bad-sample, --ranks: require labels that are one class for each image\n"))


class Cifar(ArraysTest):
    def write(self, name, *records):
        planes = np.zeros((len(records), 3, 32, 32), np.uint8)
        for record, (_, value) in enumerate(records):
            planes[record, :, 0, 0] = value, value + 1, value + 2
        folder = self.folder / "cifar"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"".join(bytes(labels) + own.tobytes() for (labels, _), own in zip(records, planes)))

    def arguments(self):
        return [self.output, self.folder / "cifar", "--from", "cifar"]

    def test_batches_are_read_in_order(self):
        self.write("data_batch_2.bin", ([3], 9))
        self.write("data_batch_1.bin", ([1], 1), ([2], 5))
        self.write("test_batch.bin", ([4], 20))
        (self.folder / "cifar/batches.meta.txt").write_text("".join(f"{c}\n" for c in "abcdefghij") + "\n")
        self.do_import(*self.arguments())
        with h5py.File(self.output, "r") as file:
            np.testing.assert_array_equal(file["train/labels"][()], [1, 2, 3])
            np.testing.assert_array_equal(file["train/images"][:, 0, 0], [[1, 2, 3], [5, 6, 7], [9, 10, 11]])
            np.testing.assert_array_equal(file["test/images"][:, 0, 0], [[20, 21, 22]])
            self.assertEqual("".join(map(helper.text, file.attrs["classes"])), "abcdefghij")
        (self.folder / "cifar/batches.meta.txt").write_text("a\nb\n")
        self.refused("has 2 names instead of 10", *self.arguments())
        (self.folder / "cifar/data_batch_2.bin").write_bytes(bytes(3072))
        self.refused("data_batch_2.bin: 3072 bytes, which is not a multiple", *self.arguments())
        (self.folder / "cifar/test_batch.bin").unlink()
        (self.folder / "cifar/data_batch_2.bin").unlink()
        self.refused("test_batch.bin: No such file", *self.arguments())

    def test_fine_labels(self):
        self.write("train.bin", ([1, 99], 1))
        self.write("test.bin", ([1, 98], 2))
        self.refused("binary version", *self.arguments())
        (self.folder / "cifar/fine_label_names.txt").write_text("".join(f"fine {i}\n" for i in range(100)))
        self.do_import(*self.arguments())
        with h5py.File(self.output, "r") as file:
            self.assertEqual((file["train/labels"][0], file["test/labels"][0]), (99, 98))


if __name__ == "__main__":
    helper.main()
