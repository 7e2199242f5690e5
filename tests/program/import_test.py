"""Importing data sets of other formats."""
import io
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tarfile
import time
import unittest

import h5py
import numpy as np
import PIL.Image

import helper


CLASSES = ["a dog", "bird", "cat"]


def picture(seed, height=0, width=0):
    """A noise image of random size."""
    random = np.random.default_rng(seed)
    height, width = height or random.integers(8, 40), width or random.integers(8, 40)
    return PIL.Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image, form="JPEG"):
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def write_folder(source, train=30, test=5):
    """Images of three classes: {path within the source: bytes}, in order."""
    content = {}
    for split, count in (("train", train), ("val", test)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                path = f"{split}/{name}/{number:05}.jpg"
                content[path] = encoded(picture([train, label, number, len(split)]))
    for path, image in content.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(image)
    return content


def add_to_tar(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def stored_images(group):
    """[(label, bytes)] of a split with encoded images."""
    offsets, content = group["offsets"][()], group["bytes"][()]
    return [(label, content[begin:end].tobytes())
            for label, begin, end in zip(group["labels"][()], offsets[:-1], offsets[1:])]


class ImportImages(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.source, self.output = self.folder / "images", self.folder / "data.h5"

    def do_import(self, *more, ranks=0, output=None, form="folder"):
        return self.succeed("import", output or self.output, self.source, "--from", form, *more, ranks=ranks)

    def leftovers(self):
        return sorted(path.name for path in self.folder.iterdir() if path != self.source)

    def test_folder_on_any_number_of_ranks(self):
        content = write_folder(self.source)
        expected = {split: [(CLASSES.index(path.split("/")[1]), image) for path, image in content.items()
                            if path.startswith(split)] for split in ("train", "val")}
        files = []
        for ranks in (0, 2, 3):
            files.append(self.folder / f"{ranks}.h5")
            self.do_import(ranks=ranks, output=files[-1])
            self.assertEqual(files[0].read_bytes(), files[-1].read_bytes(), f"{ranks} ranks make other bytes")
        self.assertEqual(self.leftovers(), ["0.h5", "2.h5", "3.h5"])
        with h5py.File(files[0], "r") as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], CLASSES)
            self.assertEqual(stored_images(file["test"]), expected["val"])
            train = stored_images(file["train"])
            self.assertNotEqual(train, expected["train"])  # a fixed shuffled order
            self.assertEqual(sorted(train), sorted(expected["train"]))
            self.assertGreater(len(set(label for label, _ in train[:10])), 1)
            pixels = np.concatenate([np.asarray(PIL.Image.open(io.BytesIO(image))).reshape(-1, 3)
                                     for _, image in expected["train"]]) / 255
            np.testing.assert_allclose(file.attrs["mean"], pixels.mean(0), rtol=1e-5)
            np.testing.assert_allclose(file.attrs["deviation"], pixels.std(0), rtol=1e-5)

    def test_shards(self):
        write_folder(self.source)
        self.do_import()
        self.do_import("--shards", 4, ranks=2, output=self.folder / "s.h5")
        shards = [self.folder / f"s-{shard:05}-of-00004.h5" for shard in range(4)]
        for split in ("train", "test"):
            joined = []
            for shard in shards:
                with h5py.File(shard, "r") as file:
                    joined += stored_images(file[split])
            with h5py.File(self.output, "r") as file:
                self.assertEqual(joined, stored_images(file[split]))

    def test_a_line_names_what_is_replaced(self):
        write_folder(self.source)
        self.assertNotIn("replaces", self.do_import().out)
        self.assertIn(f"replaces {self.output} (105 images)\n", self.do_import("--store", "pixels", "--size", "8x8").out)
        self.do_import("--shards", 2)
        self.assertIn(f"replaces {self.folder}/data-00000-of-00002.h5 and 1 more (105 images)\n", self.do_import("--shards", 2).out)
        self.output.write_text("mine")
        self.assertIn(f"replaces {self.output}\n", self.do_import("--overwrite").out)

    def test_a_share_of_each_class_is_held_out(self):
        content = write_folder(self.source)
        everything = sorted((CLASSES.index(path.split("/")[1]), image) for path, image in content.items()
                            if path.startswith("train"))
        files = []
        for ranks in (0, 3):
            files.append(self.folder / f"{ranks}.h5")
            result = self.do_import("--hold-out", 0.2, ranks=ranks, output=files[-1])
            self.assertEqual(files[0].read_bytes(), files[-1].read_bytes(), f"{ranks} ranks make other bytes")
        with h5py.File(files[0], "r") as file:
            train, validation = stored_images(file["train"]), stored_images(file["validation"])
        self.assertRegex(result.out, rf"train: {len(everything)} images .*; {len(validation)} of them held out for validation")
        self.assertEqual(sorted(train + validation), everything)
        for label in range(len(CLASSES)):
            count = [label for label, _ in everything].count(label)
            self.assertEqual([label for label, _ in validation].count(label), round(0.2 * count))
        # The same images with shards, each of which has both splits.
        self.do_import("--hold-out", 0.2, "--shards", 2, ranks=2, output=self.folder / "s.h5")
        for split, expected in (("train", train), ("validation", validation)):
            joined = []
            for shard in range(2):
                with h5py.File(self.folder / f"s-{shard:05}-of-00002.h5", "r") as file:
                    joined += stored_images(file[split])
            self.assertEqual(joined, expected)
        result = helper.run("import", self.output, self.source, "--from", "folder", "--hold-out", 0.001)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], "--hold-out 0.001: no class has enough images for it; give a larger share")

    def test_stored_as_pixels(self):
        write_folder(self.source, train=3, test=1)
        wide = self.source / "train/cat/00000.jpg"
        PIL.Image.fromarray(np.repeat(np.uint8([[0, 0, 90, 90, 90, 90, 0, 0]] * 4)[..., None], 3, 2)).save(wide, "PNG")
        self.do_import("--store", "pixels", "--size", "4x4", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.2,0.1")
        with h5py.File(self.output, "r") as file:
            self.assertEqual(file["train/images"].shape, (9, 4, 4, 3))
            np.testing.assert_array_equal(file.attrs["mean"], np.float32([0.5, 0.4, 0.3]))
            np.testing.assert_array_equal(file.attrs["deviation"], np.float32([0.2, 0.2, 0.1]))
            self.assertTrue(any((image == 90).all() for image in file["train/images"][()]))  # the middle of the wide one
        self.train(self.folder / "run", data=self.output, max_steps=1, batch=3)

    def test_images_of_all_kinds_and_other_files(self):
        write_folder(self.source, train=2, test=1)
        cat = self.source / "train/cat"
        image = picture(1, 20, 20)
        usable = {"gray.png": encoded(image.convert("L"), "PNG"), "inks.jpg": encoded(image.convert("CMYK")),
                  "palette.png": encoded(image.convert("P"), "PNG"), "alpha.png": encoded(image.convert("RGBA"), "PNG"),
                  "deep.png": encoded(PIL.Image.fromarray(np.full((9, 9), 40000, np.uint16)), "PNG"),
                  "UPPER.JPEG": encoded(image)}
        header = bytearray(usable["gray.png"])
        header[16:24] = struct.pack(">2I", 1 << 30, 1 << 30)
        broken = {"cut.jpg": encoded(image)[:-100], "empty.jpg": b"", "text.jpg": b"this is no image",
                  "cut.png": usable["alpha.png"][:-50], "huge.png": bytes(header), "line\nbreak.jpg": b"x"}
        for name, content in {**usable, **broken}.items():
            (cat / name).write_bytes(content)
        (cat / "nowhere.jpg").symlink_to("/nowhere")
        (cat / "readme.txt").write_text("not looked at")
        result = self.do_import(ranks=2)
        self.assertRegex(result.out, r"train: 12 images of .*, 7 skipped")
        lines = (self.folder / "data.h5.skipped.txt").read_text().splitlines()
        self.assertEqual(len(lines), 7)
        for name in ("cut.jpg", "cut.png", "empty.jpg", "huge.png", r"line\nbreak.jpg", "nowhere.jpg", "text.jpg"):
            self.assertTrue(any(line.startswith(f"{cat}/{name}\t") for line in lines), lines)
        with h5py.File(self.output, "r") as file:
            stored = {content for _, content in stored_images(file["train"])}
            self.assertLessEqual(set(usable.values()), stored)
        # With --on-bad-sample fail, nothing is skipped.
        result = helper.run("import", self.folder / "other.h5", self.source, "--from", "folder", "--on-bad-sample", "fail")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"train/cat/.*: ")
        # A later import without skipped images removes the list.
        for name in broken:
            (cat / name).unlink()
        (cat / "nowhere.jpg").unlink()
        self.do_import("--channels", 1)
        self.assertEqual(self.leftovers(), ["data.h5"])
        with h5py.File(self.output, "r") as file:
            self.assertEqual(file.attrs["mean"].shape, (1,))

    def test_nothing_usable(self):
        write_folder(self.source, train=1, test=1)
        for image in self.source.glob("val/*/*.jpg"):
            image.write_bytes(b"")
        result = helper.run("import", self.output, self.source, "--from", "folder")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertIn("none of the test images is usable (3 skipped", result.messages[0])
        self.assertFalse(self.output.exists())

    def test_unreadable_files_are_skipped_and_listed(self):
        write_folder(self.source, train=2, test=1)
        (self.source / "train/cat/up").symlink_to("..")
        (self.source / "train/round").symlink_to("round")
        os.mkfifo(self.source / "val/cat/pipe.jpg")
        result = self.do_import(ranks=2)
        self.assertRegex(result.out, r"train: 6 images of .*, 2 skipped")
        lines = (self.folder / "data.h5.skipped.txt").read_text().splitlines()
        for name, reason in (("train/cat/up", "a link to a folder that it lies in"),
                             ("train/round", "Too many levels of symbolic links"), ("val/cat/pipe.jpg", "not a regular file")):
            self.assertTrue(any(line.startswith(f"{self.source}/{name}\t") and reason in line for line in lines), lines)
        result = helper.run("import", self.folder / "other.h5", self.source, "--from", "folder", "--on-bad-sample", "fail")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertIn("train/round: Too many levels of symbolic links", result.messages[0])

    @unittest.skipIf(shutil.which("setpriv") is None or os.getuid() != 0, "needs root, and setpriv to be nobody")
    def test_a_folder_without_permission_is_skipped_and_listed(self):
        write_folder(self.source, train=2, test=1)
        closed = self.source / "train/cat/closed"
        closed.mkdir(mode=0)
        for folder in (self.shared, self.folder):
            folder.chmod(0o777)
        result = helper.run("import", self.output, self.source, "--from", "folder",
                            prefix=("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"))
        self.assertEqual(result.status, 0, str(result))
        self.assertIn(f"{closed}\tcannot read this folder: Permission denied",
                      (self.folder / "data.h5.skipped.txt").read_text())

    def test_a_label_beyond_all_images_is_refused(self):
        self.source.mkdir(exist_ok=True)
        for split, last in (("train", "1000000"), ("val", "1")):
            with tarfile.open(self.source / f"{split}.tar", "w") as tar:
                for number, label in enumerate(("0", last)):
                    add_to_tar(tar, f"{number}.jpg", encoded(picture(number)))
                    add_to_tar(tar, f"{number}.cls", label.encode())
        result = helper.run("import", self.output, self.source, "--from", "tar")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertIn("label 1000000 in train.tar (train images), but there are only 4 images in total", result.messages[0])
        self.assertFalse(self.output.exists())

    def test_samples_that_webdataset_does_not_have_are_listed(self):
        self.source.mkdir(exist_ok=True)
        with tarfile.open(self.source / "train.tar", "w") as tar:
            for name in ("1.input", "2.input"):
                add_to_tar(tar, f"{name}.jpg", encoded(picture(1)))
                add_to_tar(tar, f"{name}.cls", b"1")
        result = helper.run("import", self.output, self.source, "--from", "tar")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertIn("none of the train images is usable (2 skipped: see", result.messages[0])
        listed = (self.folder / "data.h5.skipped.txt").read_text().splitlines()
        self.assertEqual(len(listed), 2, listed)
        for line, name in zip(listed, ("1.input", "2.input")):
            self.assertIn(f"train.tar: {name}\t{name}.jpg: keys end at the first dot", line)

    def test_images_in_one_folder_have_no_labels(self):
        self.source.mkdir(exist_ok=True)
        with tarfile.open(self.source / "train.tar", "w") as tar:
            add_to_tar(tar, "images/1.jpg", encoded(picture(1)))
        result = helper.run("import", self.output, self.source, "--from", "tar")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertIn("has no labels: all images have one class, 'images', and KEY.cls is missing", result.messages[0])

    def test_archives(self):
        content = write_folder(self.source, train=4, test=2)
        webdataset = self.folder / "webdataset"
        classes = self.folder / "classes"
        for folder in (webdataset, classes / "train", classes / "val"):
            folder.mkdir(parents=True)
        for split in ("train", "val"):
            own = [(path, image) for path, image in content.items() if path.startswith(split)]
            for shard in range(2):
                with tarfile.open(webdataset / f"set-{split}-{shard}.tar.gz", "w:gz") as tar:
                    for number, (path, image) in enumerate(own[shard::2]):
                        add_to_tar(tar, f"é{number}.jpg", image)
                        add_to_tar(tar, f"é{number}.cls", str(CLASSES.index(path.split("/")[1])).encode())
            for name in CLASSES:
                with tarfile.open(classes / split / f"{name}.tar", "w") as tar:
                    for path, image in own:
                        if path.split("/")[1] == name:
                            add_to_tar(tar, path.split("/")[2], image)
        self.do_import()
        with h5py.File(self.output, "r") as file:
            expected = {split: stored_images(file[split]) for split in ("train", "test")}
        for self.source, same_order in ((classes, True), (webdataset, False)):
            with self.subTest(self.source.name):
                names = [] if same_order else ["--classes", ",".join(CLASSES)]
                self.do_import(*names, form="tar", ranks=2)
                with h5py.File(self.output, "r") as file:
                    self.assertEqual([helper.text(name) for name in file.attrs["classes"]], CLASSES)
                    for split in ("train", "test"):
                        stored = stored_images(file[split])
                        self.assertEqual(sorted(stored), sorted(expected[split]))
                        if same_order:
                            self.assertEqual(stored, expected[split])

    def write_archives_of_folders(self, archives, samples=6):
        """Shards of training images whose classes are named by folders within, class by class."""
        self.source.mkdir()
        names = [f"train-{number:03}.tar" for number in range(archives)] + ["val.tar"]
        for number, name in enumerate(names):
            with tarfile.open(self.source / name, "w") as tar:
                for sample in range(samples):
                    of_class = CLASSES[(number if name != "val.tar" else sample) % len(CLASSES)]
                    add_to_tar(tar, f"{of_class}/{number}-{sample}.jpg", encoded(picture(100 * number + sample)))

    def test_classes_within_archives_are_found_by_all_ranks(self):
        self.write_archives_of_folders(4)
        files = [self.folder / f"{ranks}.h5" for ranks in (0, 2, 3)]
        for ranks, file in zip((0, 2, 3), files):
            self.do_import(form="tar", ranks=ranks, output=file)
            self.assertEqual(files[0].read_bytes(), file.read_bytes(), f"{ranks} ranks make other bytes")
        with h5py.File(files[0], "r") as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], CLASSES)
            self.assertEqual(len(stored_images(file["train"])), 24)
        result = helper.run("import", self.output, self.source, "--from", "tar", "--classes", "a,b")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"--classes: 2 names for 3 classes; the class names .* are kept in .*data\.h5\.parts")
        result = self.do_import("--classes", "a,b,c", form="tar")  # a different import, but nothing is lost yet
        self.assertIn("no finished pieces: starting over", result.out)

    def test_archives_are_scanned_once(self):
        self.write_archives_of_folders(60, samples=20)
        parts = self.folder / "data.h5.parts"
        result = self.begin_and_stop(signal.SIGTERM, form="tar", sign="train-*.classes.json")
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertRegex(result.out, r"stopped; (the class names that were found|\d+ of 61 pieces) are kept in .*run the same command to continue")
        found = min(parts.glob("train-*.classes.json"))
        found.write_text('["cat", "zebra"]')
        self.do_import(form="tar", ranks=3)
        with h5py.File(self.output, "r") as file:
            self.assertEqual([helper.text(name) for name in file.attrs["classes"]], CLASSES + ["zebra"])

    def test_chunks_with_checksums(self):
        write_folder(self.source)
        for name, chunk, options in (("bytes", 7, []), ("images", 4, ["--store", "pixels", "--size", "9x7"])):
            plain = self.folder / f"{name}.h5"
            self.do_import(*options, output=plain)
            files = [self.folder / f"{name}-{ranks}.h5" for ranks in (0, 2, 3)]
            for ranks, path in zip((0, 2, 3), files):
                self.do_import("--chunk", chunk, *options, ranks=ranks, output=path)
                self.assertEqual(files[0].read_bytes(), path.read_bytes(), f"{ranks} ranks make other bytes")
            with h5py.File(plain, "r") as expected, h5py.File(files[0], "r") as file:
                for split, samples in (("train", 90), ("test", 15)):
                    images = file[split][name]
                    self.assertEqual((images.fletcher32, images.compression, expected[split][name].chunks), (True, None, None))
                    rows = (len(images) // samples + 1) * chunk if name == "bytes" else chunk
                    self.assertEqual(images.chunks[0], min(rows, len(images)))
                    np.testing.assert_array_equal(images[()], expected[split][name][()])  # verified by HDF5
                    np.testing.assert_array_equal(file[split]["labels"][()], expected[split]["labels"][()])
                place = file["train"][name].id.get_chunk_info(2).byte_offset + 5
            out = self.folder / f"{name}-run"
            options = {"data": files[0], "image": 32, "batch": 30, "augment": "none"}
            self.train(out, **options)
            self.train(self.folder / f"{name}-plain", **{**options, "data": plain})
            self.assert_same_state(out / "checkpoint.h5", self.folder / f"{name}-plain/checkpoint.h5")
            with open(files[0], "r+b") as file:  # a flipped bit on the disk
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 4]))
            with h5py.File(files[0], "r") as file, self.assertRaises(OSError):
                file["train"][name][()]
            result = helper.run(*self.training(self.folder / "damaged", **options))
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertRegex(result.messages[0], rf"{name}-0\.h5: (damaged: bytes|.*{name}: cannot read: .*letcher32)")

    def test_too_many_chunks_are_refused_and_nothing_is_lost(self):
        (self.source / "train/cat").mkdir(parents=True)
        image = encoded(picture(1, 9, 9))
        for number in range(10_001):
            (self.source / f"train/cat/{number}.jpg").write_bytes(image)
        options = ("--store", "pixels", "--size", "1x2", "--channels", 1, "--std", 1)
        result = helper.run("import", self.output, self.source, "--from", "folder", *options, "--chunk", 1)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"--chunk 1: makes 10001 chunks of 2 B each .* 10000 of .*or more --shards; .*fix the problem")
        self.do_import(*options, "--chunk", 2)
        with h5py.File(self.output, "r") as file:
            self.assertEqual(file["train/images"].chunks, (2, 1, 2, 1))

    def begin_and_stop(self, number, *more, ranks=0, form="folder", sign="train-*[0-9].json"):
        """Sends a signal to an import of several pieces when the first piece is done, or on another condition."""
        parts = self.folder / "data.h5.parts"
        process = helper.start("import", self.output, self.source, "--from", form, *more, ranks=ranks)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        deadline = time.monotonic() + 30
        while not list(parts.glob(sign)):
            self.assertTrue(process.poll() is None and time.monotonic() < deadline, "no part appears")
            time.sleep(0.002)
        if number == signal.SIGKILL:
            return helper.kill(process)
        process.send_signal(number)
        return helper.finish(process)

    def many_images(self):
        """Four pieces: links to a few large images, so that they take a while."""
        write_folder(self.source, train=1, test=1)
        for name in CLASSES:
            folder = self.source / "train" / name
            (folder / "00000.jpg").write_bytes(encoded(picture(CLASSES.index(name), 120, 120)))
            for number in range(1, 1000):
                os.link(folder / "00000.jpg", folder / f"{number:05}.jpg")

    def test_resumes_after_a_stop_or_kill(self):
        self.many_images()
        self.do_import("--on-bad-sample", "fail", "--chunk", 100, output=self.folder / "whole.h5")
        result = self.begin_and_stop(signal.SIGTERM)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertRegex(result.out, r"stopped; [1-4] of 4 pieces are kept in .*data\.h5\.parts: run the same command to continue")
        self.assertFalse(self.output.exists())
        result = self.begin_and_stop(signal.SIGKILL, ranks=2)
        self.assertFalse(self.output.exists())
        # Another import must not continue from there.
        result = helper.run("import", self.output, self.source, "--from", "folder", "--channels", 1)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"data\.h5\.parts: has an unfinished import with another --channels")
        result = self.do_import("--chunk", 100, ranks=3)
        self.assertRegex(result.out, r"[1-4] of 4 pieces are finished; continuing")
        self.assertEqual(self.output.read_bytes(), (self.folder / "whole.h5").read_bytes())
        self.assertEqual(self.leftovers(), ["data.h5", "whole.h5"])

    def test_a_source_that_has_changed_is_imported_anew(self):
        self.many_images()
        self.begin_and_stop(signal.SIGKILL)
        (self.source / "train/cat/00000.jpg").unlink()
        result = self.do_import()
        self.assertIn("the source has changed since: starting over", result.out)
        self.assertIn("train: 2999 images", result.out)

    def test_full_disk(self):
        write_folder(self.source, train=300, test=1)
        size = sum(path.stat().st_size for path in self.source.glob("*/*/*.jpg"))
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size * 3 // 2}", "tmpfs", str(disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            raise unittest.SkipTest("a full disk is not tried: may not mount a small one here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)])
        for ranks in (0, 2):
            result = helper.run("import", disk / "data.h5", self.source, "--from", "folder", ranks=ranks)
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertRegex(result.messages[0], r"disk/data\.h5: cannot write: No space left on device.*run the same command to continue")
            self.assertEqual([path.name for path in disk.iterdir()], ["data.h5.parts"])
        subprocess.run(["mount", "-o", f"remount,size={size * 3}", str(disk)], check=True)
        result = self.succeed("import", disk / "data.h5", self.source, "--from", "folder")
        self.assertIn("2 of 2 pieces are finished; continuing", result.out)
        self.assertEqual([path.name for path in disk.iterdir()], ["data.h5"])

    def test_images_in_the_forms_that_people_have(self):
        """Folders of classes, a table of labels, and one archive with JSON: without --from."""
        content = write_folder(self.source, train=3, test=0)
        images = {path.split("/", 1)[1]: image for path, image in content.items()}
        classes = self.source / "train"
        flat, table, archive = self.folder / "flat", self.folder / "labels.csv", self.folder / "photos.tar"
        flat.mkdir()
        rows = ["id,label"]
        with tarfile.open(archive, "w") as tar:
            for number, (path, image) in enumerate(images.items()):
                label = path.split("/")[0]
                (flat / f"{number}.jpg").write_bytes(image)
                rows.append(f"{number},{label}")
                add_to_tar(tar, f"{number}.jpg", image)
                add_to_tar(tar, f"{number}.json", json.dumps({"class": label}).encode())
        table.write_text("\n".join(rows))
        expected = sorted((CLASSES.index(path.split("/")[0]), image) for path, image in images.items())
        for source, more, form in ((classes, [], "folder"), (flat, ["--labels", table], "folder"), (archive, [], "tar")):
            with self.subTest(form=form, more=more):
                result = self.succeed("import", self.output, source, *more, ranks=2)
                self.assertIn(f"{source}: read with --from {form}", result.out)
                self.assertIn("has no validation or test images; --hold-out 0.1 keeps", result.out)
                with h5py.File(self.output) as file:
                    self.assertEqual([helper.text(name) for name in file.attrs["classes"]], CLASSES)
                    self.assertEqual(sorted(stored_images(file["train"])), expected)
                    self.assertNotIn("test", file)

    def test_misuse_is_refused(self):
        write_folder(self.source, train=1, test=1)
        (self.folder / "empty").mkdir()
        for status, expected, arguments in (
                (1, "has no folders of images: expected CLASS/*.jpg, or train/", [self.folder / "empty", "--from", "folder"]),
                (1, "neither images, archives nor text: it is empty", [self.folder / "empty"]),
                (1, "--labels: is for --from folder", [self.source, "--from", "tar", "--labels", "x"]),
                (1, "--label-key: is for --from tar", [self.source, "--label-key", "x"]),
                (1, "no such file or folder", [self.folder / "none"]),
                (1, "no such file or folder", [self.folder / "none", "--from", "folder"]),
                (1, "not a folder", [self.source / "train/cat/00000.jpg", "--from", "folder"]),
                (2, "cifar is read by scripts/import-arrays FILE SOURCE --from cifar", [self.source, "--from", "cifar"]),
                (1, "no archives", [self.source, "--from", "tar"]),
                (1, "requires a size", [self.source, "--from", "folder", "--store", "pixels"]),
                (1, "keep their sizes", [self.source, "--from", "folder", "--size", "8x8"]),
                (1, "2 names for 3 classes", [self.source, "--from", "folder", "--classes", "a,b"]),
                (1, "--mean: 1 values for 3", [self.source, "--from", "folder", "--mean", "0.5"]),
                (1, "only 3 training images", [self.source, "--from", "folder", "--shards", "4"]),
                (2, "--size", [self.source, "--from", "folder", "--store", "pixels", "--size", "8"]),
                (2, "--size", [self.source, "--from", "folder", "--store", "pixels", "--size", "0x8"]),
                (2, "--size", [self.source, "--from", "folder", "--store", "pixels", "--size", "8x-8"]),
                (2, "--shards", [self.source, "--from", "folder", "--shards", "0"]),
                (2, "--from", [self.source, "--from", "zip"]),
                (2, "--channels", [self.source, "--from", "folder", "--channels", "2"]),
                (2, "--std", [self.source, "--from", "folder", "--std", "0,1,1"])):
            with self.subTest(arguments=arguments[1:]):
                result = helper.run("import", self.output, *arguments)
                self.assertEqual((result.status, len(result.messages)), (status, 1), str(result))
                self.assertIn(expected, result.messages[0])
                self.assertFalse(self.output.exists())


if __name__ == "__main__":
    helper.main()
