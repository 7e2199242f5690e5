"""What a user types first, with data in the forms that people have: it works, or a line says what to type instead."""
import json
import os
import shlex
import subprocess
import tarfile

import h5py
import numpy as np

import helper
from import_samples_test import PYTHON, WRITER, base64
from import_test import add_to_tar, encoded, picture

LABELS = [0, 1, 0, 1, 0, 1]
NAMES = ["cat", "dog"]


class FirstAttempts(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.images = [encoded(picture(seed, 9, 9)) for seed in range(len(LABELS))]
        for write in (cls.write_folders, cls.write_archives, cls.write_tables, cls.write_arrays):
            write()

    @classmethod
    def put(cls, path, content):
        path = cls.shared / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    @classmethod
    def write_folders(cls):
        for number, (image, label) in enumerate(zip(cls.images, LABELS)):
            cls.put(f"photos/{NAMES[label]}/{number}.jpg", image)
            for split in ("train", "validation"):
                cls.put(f"split/{split}/{NAMES[label]}/{number}.jpg", image)
        (cls.shared / "empty").mkdir()

    @classmethod
    def write_archives(cls):
        def write(path, field, value):
            (cls.shared / path).parent.mkdir(exist_ok=True)
            with tarfile.open(cls.shared / path, "w") as tar:
                for number, (image, label) in enumerate(zip(cls.images, LABELS)):
                    add_to_tar(tar, f"{number}.jpg", image)
                    add_to_tar(tar, f"{number}.{field}", value(label).encode())
        for shard in range(2):
            write(f"shards/shard-{shard:06}.tar", "cls", str)
        write("one.tar", "cls", str)
        write("json.tar", "json", lambda label: json.dumps({"label": label, "width": 9}))
        write("breeds.tar", "json", lambda label: json.dumps({"breed": NAMES[label]}))

    @classmethod
    def write_tables(cls):
        rows = [f"{number}.jpg,{NAMES[label]}" for number, label in enumerate(LABELS)]
        for number, image in enumerate(cls.images):
            for folder in ("kaggle", "hub/train"):
                cls.put(f"{folder}/{number}.jpg", image)
        cls.put("labels.csv", "\n".join(["image,label", *rows]))
        cls.put("rows.csv", "\n".join(rows))
        cls.put("hub/train/metadata.csv", "\n".join(["file_name,label", *rows]))
        cls.put("hub/README.md", "---\nlicense: mit\n---\n")

    @classmethod
    def write_arrays(cls):
        pixels = np.random.default_rng(1).integers(0, 256, (len(LABELS), 9, 9, 3), dtype=np.uint8)
        for folder, own in (("floats", (pixels / 255).astype(np.float32).transpose(0, 3, 1, 2)), ("normalized", pixels / 127.5 - 1)):
            (cls.shared / folder).mkdir()
            np.save(cls.shared / folder / "X.npy", own)
            np.save(cls.shared / folder / "y.npy", LABELS)
        (cls.shared / "halves").mkdir()
        for split in ("train", "test"):
            with h5py.File(cls.shared / f"halves/{split}.h5", "w") as file:
                file["X"], file["y"] = pixels, LABELS
        np.savez(cls.shared / "keras.npz", x_train=pixels, y_train=LABELS, x_test=pixels, y_test=LABELS)
        for number, (image, label) in enumerate(zip(pixels, LABELS)):
            cls.put(f"scans/{NAMES[label]}/{number}.h5", "")
            with h5py.File(cls.shared / f"scans/{NAMES[label]}/{number}.h5", "w") as file:
                file["image"] = image
        cls.put("mnist/train-images-idx3-ubyte", "")
        for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
            cls.put(f"beans/data/{name}.parquet", "")
        cls.put("beans/README.md", "---\nlicense: mit\n---\n")

    def type(self, line):
        """Runs a command line in the folder of the data."""
        programs = {"annulus": helper.ANNULUS, "scripts/import-arrays": str(helper.IMPORT_ARRAYS)}
        words = shlex.split(line)
        return subprocess.run([programs[words[0]], *words[1:]], cwd=self.shared, capture_output=True, text=True,
                              env={**os.environ, **helper.ENVIRONMENT, "ANNULUS": helper.ANNULUS})

    def expect_images(self, line, said):
        """Each split has the six images, or twice the six, in two classes."""
        done = self.type(line)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn(said, done.stdout)
        file = next(word for word in line.split() if word.endswith(".h5"))
        with h5py.File(self.shared / file) as file:
            self.assertEqual(len(file.attrs["classes"]), 2)
            for split in file.values():
                labels = list(split["labels"][()])
                self.assertIn(sorted(labels), (sorted(LABELS), sorted(2 * LABELS)))

    def test_works(self):
        untested = "has no validation or test images; --hold-out 0.1 keeps a tenth of the training images for it"
        cases = (
            ("annulus import photos.h5 --from folder photos", untested),
            ("annulus import guessed.h5 photos", "photos: read with --from folder"),
            ("annulus import split.h5 split", "test: 6 images of 9x9, 2 classes"),
            ("annulus import shards.h5 shards", "train: 12 images of 9x9, 2 classes"),
            ("annulus import one.h5 one.tar", "one.tar: read with --from tar"),
            ("annulus import json.h5 json.tar", untested),
            ("annulus import breeds.h5 breeds.tar --label-key breed", untested),
            ("annulus import kaggle.h5 --from folder kaggle --labels labels.csv", untested),
            ("annulus import rows.h5 kaggle --labels rows.csv", untested),
            ("annulus import hub.h5 hub", "hub/train/metadata.csv: has the labels"),
            ("scripts/import-arrays floats.h5 floats", "floats: read with --from npy"),
            ("scripts/import-arrays halved.h5 halves", "halves: read with --from hdf5"),
            ("scripts/import-arrays keras.h5 keras.npz", "test: 6 images of 9x9, 2 classes"),
            ("scripts/import-arrays scans.h5 scans", "scans: read with --from hdf5"))
        helper.at_once(lambda case: self.expect_images(*case), cases)

    def test_parquet(self):
        done = self.type("scripts/import-arrays beans.h5 beans")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done)
        if not PYTHON.exists() and "requires pyarrow" in done.stderr:
            self.skipTest(f"no pyarrow: scripts/setup --parquet installs it in {PYTHON.parents[1]}")
        rows = [[base64.b64encode(image).decode(), None, label] for image, label in zip(self.images, LABELS)]
        files = {str(path): rows for path in self.shared.glob("beans/data/*.parquet")}
        subprocess.run([PYTHON, "-c", WRITER], input=json.dumps([files, None]), text=True, check=True)
        self.expect_images("scripts/import-arrays beans.h5 beans", "train: 12 images of 9x9, 2 classes")

    def test_says_what_to_type(self):
        self.expect_images("annulus import untested.h5 photos", "untested.h5: has no validation or test images")
        cases = (
            ("annulus import a0.h5 floats", "floats: *.npy: read by scripts/import-arrays FILE SOURCE --from npy"),
            ("annulus import a1.h5 mnist", "mnist: *-ubyte: read by scripts/import-arrays FILE SOURCE --from idx"),
            ("annulus import a2.h5 beans", "beans: *.parquet: read by scripts/import-arrays FILE SOURCE --from parquet"),
            ("annulus import a3.h5 scans", "scans: *.h5: read by scripts/import-arrays FILE SOURCE --from hdf5"),
            ("annulus import a4.h5 --from parquet beans", "parquet is read by scripts/import-arrays FILE SOURCE --from parquet"),
            ("annulus import a5.h5 kaggle", "or give a table of labels with --labels FILE"),
            ("annulus import a6.h5 breeds.tar", "name it with --label-key: breed"),
            ("annulus import a7.h5 empty", "empty: has neither images, archives nor text: it is empty; --from names a format"),
            ("scripts/import-arrays a8.h5 normalized", "save (255 * x).round().astype('uint8') of x from 0 to 1, before it is normalized"),
            ("scripts/import-arrays a9.h5 photos", "`annulus import` reads folders and archives of images, and text"))

        def expect_line(case):
            done = self.type(case[0])
            self.assertIn(done.returncode, (1, 2), done)
            self.assertEqual(len(done.stderr.splitlines()), 1, done)
            self.assertIn(case[1], done.stderr)
        helper.at_once(expect_line, cases)
        done = self.type("annulus train --model mlp --data untested.h5 --image 9 --out run")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("  evaluation  none: untested.h5 has no validation or test samples; import again with --hold-out 0.1",
                      done.stdout)


if __name__ == "__main__":
    helper.main()
