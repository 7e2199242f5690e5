"""Data files of encoded images, in several files, with bad samples among them."""
import json
import os
import struct
import subprocess
import unittest
import zlib

import h5py
import numpy as np

import helper


def png(pixels):
    """A PNG file of an array height x width x 3."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_pngs(path, splits, damaged=()):
    """`splits`: {name: (count, seed)}; `damaged`: (split, sample) whose files are cut off."""
    encoded = {}
    for split, (count, seed) in splits.items():
        pixels, labels = helper.images(count, seed, channels=3)
        files = [png(image[:28 - number % 3]) for number, image in enumerate(pixels)]
        for number in (sample for where, sample in damaged if where == split):
            files[number] = files[number][:len(files[number]) // 2]
        encoded[split] = files, labels
    return helper.write_encoded(path, encoded)


class InputTest(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_pngs(cls.shared / "part-1.h5", {"train": (120, 1), "test": (40, 2)})
        write_pngs(cls.shared / "part-2.h5", {"train": (80, 3)})
        cls.parts = cls.shared / "part-*.h5"
        cls.bad = write_pngs(cls.shared / "bad.h5", {"train": (100, 1), "test": (50, 2)},
                             [("train", 7), ("train", 8), ("test", 3), ("test", 49)])

    def encoded(self, out, ranks=0, **options):
        return self.train(out, ranks, **{"data": self.parts, "image": 24, "global_batch": 40, "epochs": 2, **options})

    def test_encoded_images_in_several_files_are_trained_on(self):
        results = self.encoded(self.folder / "one", epochs=6, augment="flip")
        self.assertGreater(results["test_accuracy"], 0.5)
        self.assertEqual(results["epochs"][0]["skipped"], 0)

    def test_any_number_of_threads_is_bit_identical(self):
        self.encoded(self.folder / "one", workers=1, prefetch=1)
        self.encoded(self.folder / "three", workers=3, prefetch=5)
        self.assert_same_state(self.folder / "one/checkpoint.h5", self.folder / "three/checkpoint.h5")

    def test_ranks_see_the_same_images(self):
        losses = [self.encoded(self.folder / str(ranks), ranks, shuffle="block,size=16")["epochs"]
                  for ranks in (1, 2, 3)]
        for other in losses[1:]:
            for ours, theirs in zip(losses[0], other):
                self.assertAlmostEqual(ours["train_loss"], theirs["train_loss"], places=4)
                self.assertAlmostEqual(ours["test_loss"], theirs["test_loss"], places=4)

    def test_ranks_and_resuming_do_not_change_random_changes_and_mixtures(self):
        options = {"augment": "auto,rand=2:9,erase=0.25,mixup=0.2,cutmix=1", "label_smoothing": 0.1}
        result = self.succeed(*self.training(self.folder / "whole", data=self.parts, image=24, global_batch=40, epochs=2,
                                             **options), ranks=2)
        self.assertIn("random resized crop, random flips, RandAugment of 2 changes of magnitude 9, 25 % with a rectangle "
                      "erased, mixup, CutMix;", result.out)
        for part in ({"max_steps": 7}, {"resume": True}):
            self.encoded(self.folder / "parts", ranks=2, **options, **part)
        self.assert_same_state(self.folder / "whole/checkpoint.h5", self.folder / "parts/checkpoint.h5")
        self.encoded(self.folder / "three", ranks=3, **options, accumulate=2)
        self.assertLess(self.farthest(self.folder / "whole/checkpoint.h5", self.folder / "three/checkpoint.h5"), 1e-4)
        self.encoded(self.folder / "plain")
        self.assertGreater(self.farthest(self.folder / "whole/checkpoint.h5", self.folder / "plain/checkpoint.h5"), 1e-3)
        self.assertEqual(helper.run(*self.training(self.folder / "refused", augment="auto,rand=2")).status, 2)

    def test_a_run_resumes_in_the_middle_of_an_epoch(self):
        self.encoded(self.folder / "whole")
        for options in ({"max_steps": 7}, {"resume": True}):
            self.encoded(self.folder / "parts", **options)
        self.assert_same_state(self.folder / "whole/checkpoint.h5", self.folder / "parts/checkpoint.h5")

    def test_a_bad_sample_ends_the_run(self):
        for ranks in (0, 2):
            result = helper.run(*self.training(self.folder / str(ranks), data=self.bad, image=24), ranks=ranks)
            self.assertNotEqual(result.status, 0)
            self.assertRegex("\n".join(result.messages), r"bad.h5: train sample [78]: a damaged PNG image: .*skip")

    def test_bad_samples_are_skipped_and_counted(self):
        counts = []
        for ranks in (1, 2, 3):
            out = self.folder / str(ranks)
            epochs = self.encoded(out, ranks, data=self.bad, on_bad_sample="skip")["epochs"]
            counts.append([(epoch["skipped"], epoch["test_skipped"]) for epoch in epochs])
            if ranks > 1:
                for ours, theirs in zip(first, epochs):
                    self.assertAlmostEqual(ours["train_loss"], theirs["train_loss"], places=4)
                    self.assertAlmostEqual(ours["test_loss"], theirs["test_loss"], places=4)
            first = epochs if ranks == 1 else first
        self.assertEqual(counts, [[(2, 2), (2, 2)]] * 3)
        options = ["eval", "--data", self.bad, "--checkpoint", self.folder / "2/checkpoint.h5", "--image", 24]
        result = self.succeed(*options, "--on-bad-sample", "skip", "--json", self.folder / "eval.json", ranks=2)
        self.assertIn("2 bad images were skipped", result.out)
        self.assertIn("bad.h5: test sample 49: ", result.err)
        found = json.loads((self.folder / "eval.json").read_text())
        self.assertEqual((found["count"], found["skipped"]), (48, 2))
        self.assertAlmostEqual(found["loss"], first[-1]["test_loss"], places=4)
        result = helper.run(*options)
        self.assertNotEqual(result.status, 0)
        self.assertRegex("\n".join(result.messages), r"bad.h5: test sample (3|49): ")

    def test_images_of_a_damaged_chunk_are_named_and_skipped(self):
        data = helper.write_data(self.folder / "chunks.h5", train=96, test=16)
        with h5py.File(data, "a") as file:
            pixels = file["train/images"][()]
            del file["train/images"]
            file.create_dataset("train/images", data=pixels, chunks=(8, 28, 28, 1), fletcher32=True)
            place = file["train/images"].id.get_chunk_info(3).byte_offset
        content = bytearray(data.read_bytes())
        content[place + 100] ^= 0xff
        data.write_bytes(content)
        result = helper.run(*self.training(self.folder / "out", data=data))
        self.assertNotEqual(result.status, 0)
        self.assertRegex("\n".join(result.messages), r"chunks.h5: train sample \d+: .*/train/images: cannot read.*skip")
        results = self.train(self.folder / "skipped", 2, data=data, on_bad_sample="skip", global_batch=32)
        self.assertEqual(results["epochs"][0]["skipped"], 8)

    def test_evaluation_uses_the_image_size_of_the_checkpoint(self):
        def evaluate(data, *options):
            return helper.run("eval", "--data", data, "--checkpoint", out / "checkpoint.h5", *options)

        out = self.folder / "encoded"
        found = self.encoded(out, epochs=1, model="resnet20", global_batch=100)
        loss = f"loss {found['test_loss']:.4f}"
        self.assertIn(f": accuracy {100 * found['test_accuracy']:.2f} %, ", evaluate(self.parts).out)
        self.assertIn(loss, evaluate(self.parts).out)
        self.assertIn(loss, evaluate(self.parts, "--image", 24).out)
        other = evaluate(self.parts, "--image", 28)  # resnet20 takes any
        self.assertEqual(other.status, 0, other)
        self.assertNotIn(loss, other.out)
        decoded = helper.write_data(self.folder / "decoded.h5", 20, 20, channels=3)
        self.assertIn("the data's images are 28x28, but the network was trained with 24x24: choose the network's "
                      "image size with --image", evaluate(decoded).err)
        self.assertEqual(evaluate(decoded, "--image", 24).status, 0)

    def test_bench_input(self):
        for data, shares in ((self.parts, False), (self.data, True)):
            file = self.folder / "input.json"
            out = self.succeed("bench", "input", "--data", data, "--image", 28, "--seconds", 0.2, "--workers", 2,
                               "--batch", 10, "--json", file, ranks=2).out
            self.assertRegex(out, r"images/s, \d+ for each busy processor")
            found = json.loads(file.read_text())
            self.assertEqual(found["workers"], 2)
            self.assertGreater(found["images"], 0)
            self.assertGreater(found["images_per_processor_second"], 0)
            self.assertEqual("share_of_copying" in found, shares)
            self.assertEqual(set(found["thread_seconds"]),
                             {"reading", "decoding", "resizing", "augmenting", "waiting"})

    def test_a_batch_larger_than_memory_is_refused_with_its_size(self):
        for arguments in (("bench", "step", "--model", "vgg16", "--image", "224x224x3", "--classes", 1 << 20), ("bench", "step", "--batch", 10**9),
                          ("bench", "step", "--model", "cnn", "--image", "16384x16384x3")):
            result = helper.run(*arguments)
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertRegex(result.messages[0], r"takes (at least|about) [0-9.]+ GiB of memory .* has [0-9.]+ GiB")

    def test_misuse_is_refused(self):
        def complaint(**options):
            result = helper.run(*self.training(self.folder / "bad", **options))
            self.assertNotEqual(result.status, 0)
            return result.err

        self.assertIn("--workers", complaint(workers=-1))
        self.assertIn("--prefetch", complaint(prefetch=0))
        self.assertIn("--augment", complaint(augment="cutout"))
        self.assertIn("--shuffle", complaint(shuffle="none"))
        self.assertIn("--shuffle size: expected a whole number from 1", complaint(shuffle="block,size=0"))
        self.assertIn("--on-bad-sample", complaint(on_bad_sample="maybe"))
        self.assertRegex(complaint(data=self.folder / "no-*.h5"), r"no-\*\.h5: .*No such file")
        other = write_pngs(self.folder / "part-3.h5", {"train": (9, 1)})
        with h5py.File(other, "r+") as file:
            file.attrs["mean"] = np.float32([0.25] * 3)
        result = helper.run("train", "--data", self.parts, other, "--out", self.folder / "bad", "--model", "mlp")
        self.assertRegex(result.err, r"part-1.h5 and .*part-3.h5 have different means")

    def test_any_locking_of_hdf5(self):
        """Eight ranks, perhaps of another user, read a file that another process has open, in a folder that is read-only."""
        inputs, runs = self.folder / "inputs", self.folder / "runs"
        for folder in inputs, runs:
            folder.mkdir()
        data = inputs / "data.h5"
        pixels, labels = helper.images(100, seed=1)
        with h5py.File(data, "w") as file:
            for split in "train", "test":
                file.create_dataset(f"{split}/images", data=pixels, chunks=(7, 28, 28, 1), compression="gzip")
                file[f"{split}/labels"] = labels
            file.attrs["mean"] = file.attrs["deviation"] = np.float32([0.5])
            file.attrs["classes"] = [f"class {n}" for n in range(10)]
        for place, mode in (self.shared, 0o755), (self.folder, 0o755), (runs, 0o777), (data, 0o444), (inputs, 0o555):
            place.chmod(mode)
        self.addCleanup(inputs.chmod, 0o755)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if os.getuid() != 0 or subprocess.run([*nobody, helper.ANNULUS, "--version"], capture_output=True).returncode != 0:
            nobody = []
        with h5py.File(data, "r"):
            for locking in "TRUE", "FALSE", "BEST_EFFORT":
                self.succeed(*self.training(runs / locking, data=data, max_steps=4, global_batch=30), ranks=8, prefix=nobody,
                             environment={"HDF5_USE_FILE_LOCKING": locking})
                self.assert_same_state(runs / "TRUE/checkpoint.h5", runs / locking / "checkpoint.h5")


if __name__ == "__main__":
    helper.main()
