"""Data files from the MNIST database's format."""
import gzip
import struct

import h5py
import numpy as np

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


class Import(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.train_split, self.test_split = helper.images(200, 1), helper.images(50, 2)
        self.source, self.output = self.folder / "idx", self.folder / "data.h5"

    def import_arguments(self, *more):
        return ["import", self.output, "--from", "idx", self.source, *more]

    def test_plain_and_compressed(self):
        for compress in (False, True):
            with self.subTest(compress=compress):
                self.source, self.output = self.folder / f"idx-{compress}", self.folder / f"{compress}.h5"
                write_idx(self.source, self.train_split, self.test_split, compress)
                self.succeed(*self.import_arguments("--classes", "T-shirt/top,b,c,d,e,f,g,h,i,Ankle boot"))
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
                # And the program reads what it wrote.
                self.train(self.folder / f"run-{compress}", data=self.output, max_steps=1)

    def test_classes_without_names(self):
        write_idx(self.source, self.train_split, self.test_split, True)
        self.succeed(*self.import_arguments())
        with h5py.File(self.output, "r") as file:
            classes = [helper.text(name) for name in file.attrs["classes"]]
        self.assertEqual(classes, [str(n) for n in range(10)])

    def fails(self, names, *more):
        """One line that names it, and no half of a file: neither a new one nor in the place of an old one."""
        for old in (None, b"an old file"):
            self.output.unlink(missing_ok=True)
            if old:
                self.output.write_bytes(old)
            result = helper.run(*self.import_arguments(*more))
            self.assertEqual(result.status, 1, str(result))
            self.assertEqual(len(result.messages), 1, str(result))
            self.assertRegex(result.messages[0], names)
            self.assertEqual(self.output.read_bytes() if self.output.exists() else None, old)
            self.assertEqual([path for path in self.folder.iterdir() if path not in (self.source, self.output)], [])

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


if __name__ == "__main__":
    helper.main()
