"""A stopped and resumed run is identical to an uninterrupted one."""
import json
import re

import h5py
import numpy as np

import helper
from helper import read_checkpoint, run

STEPS = 20  # of 40 images each: an epoch of 500 is 13 steps


class Resume(helper.ProgramTest):
    def run_to(self, out, steps, ranks=2, **options):
        return self.train(out, ranks=ranks, max_steps=steps, epochs=3, global_batch=40, **options)

    def run_again(self, out, steps, ranks=2, **options):
        return self.succeed(*self.training(out, max_steps=steps, epochs=3, global_batch=40, resume=True, **options),
                            ranks=ranks)

    def test_bit_identical(self):
        for model in ("mlp", "lenet", "resnet20"):
            whole = self.folder / model / "whole"
            self.run_to(whole, STEPS, model=model, weight_decay=0.001)
            for stop in (5, 13, 17):  # within the first epoch, at its end, within the second
                with self.subTest(model=model, stop=stop):
                    parts = self.folder / model / f"stop-{stop}"
                    self.run_to(parts, stop, model=model, weight_decay=0.001)
                    self.assertEqual(read_checkpoint(parts / "checkpoint.h5")["attributes"]["step"], stop)
                    self.run_to(parts, STEPS, model=model, weight_decay=0.001, resume=True)
                    self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_killed_at_any_step_of_any_strategy(self):
        """The same bits need the same samples, for each order, strategy and number of ranks."""
        cases = [(3, {"strategy": "sharded"}), (2, {"accumulate": 3}), (4, {"shards": 5}), (2, {"pipeline": 2, "accumulate": 2}),
                 (3, {"strategy": "local", "sync_every": 3}), (2, {"strategy": "async", "sync_every": 3, "staleness": 0}),
                 (4, {"augment": "flip"})]
        def train(case):
            number, (ranks, changes) = case
            options = {"checkpoint_every": 3, "keep": 1, "eval_every": "none", "max_steps": STEPS, "epochs": 3, "global_batch": 40,
                       "shuffle": ("block,size=16,window=2", "global")[number % 2], **changes}
            whole, parts = self.folder / f"whole-{number}", self.folder / f"parts-{number}"
            self.train(whole, ranks=ranks, **options)
            for step in (4 + number, 15):  # rank 1 comes to each step
                run(*self.training(parts, **options, resume=True, inject=f"kill:rank=1,step={step}"), ranks=ranks)
            self.train(parts, ranks=ranks, **options, resume=True)
            return whole, parts
        for (_, case), (whole, parts) in helper.at_once(train, enumerate(cases)):
            with self.subTest(case):
                self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_the_rest_of_an_epoch_is_marked(self):
        out = self.folder / "out"
        self.run_to(out, 5)
        self.assertRegex(self.run_again(out, 12).out, r"epoch 1/3 \(from image 200 to 480\)  loss")
        result = self.run_again(out, 14)
        self.assertRegex(result.out, r"epoch 1/3 \(from image 480 on\)  loss")
        self.assertRegex(result.out, r"epoch 2/3 \(to image 40\)  loss")
        epochs = json.loads((out / "results.json").read_text())["epochs"]
        self.assertEqual([(epoch["epoch"], epoch["first_image"], epoch["steps"]) for epoch in epochs[-2:]],
                         [(1, 480, 1), (2, 0, 1)])

    def test_the_duration_covers_all_parts(self):
        out = self.folder / "out"
        first = self.run_to(out, 5)
        self.assertEqual(first["earlier_seconds"], 0)
        before = 0
        for steps in (10, 14):
            written = read_checkpoint(out / "checkpoint.h5")["attributes"]["milliseconds"] / 1000
            result = self.run_again(out, steps)
            results = json.loads((out / "results.json").read_text())
            self.assertEqual(results["earlier_seconds"], written)
            whole = results["earlier_seconds"] + results["total_seconds"]
            self.assertIn(f"{whole:.1f} s with the earlier parts of the run", result.out)
            self.assertGreater(written, before)
            before = written

    def test_a_complete_run_has_nothing_to_do(self):
        out = self.folder / "out"
        accuracy = self.run_to(out, 5)["test_accuracy"]
        before = (out / "results.json").read_bytes()
        result = self.run_again(out, 5)
        self.assertRegex(result.out, r"nothing to do: this run is complete after 5 steps")
        self.assertIn(f"test accuracy {100 * accuracy:.2f} %", result.out)
        self.assertNotIn("images/s", result.out)
        self.assertEqual((out / "results.json").read_bytes(), before)
        options = {"max_steps": 13, "epochs": 1, "global_batch": 40}
        self.train(self.folder / "epoch", **options)
        result = self.succeed(*self.training(self.folder / "epoch", resume=True, **options))
        self.assertIn("1 of 1 epochs; to continue, raise --epochs and --max-steps\n", result.out)

    def test_other_buckets_are_noted(self):
        parts, options = self.folder / "parts", {"ranks": 3, "all_reduce": "ring", "model": "cnn"}
        self.run_to(parts, 2, bucket="128KiB", **options)  # three ranks round differently in other buckets
        self.assertNotIn("rounding may differ", self.run_again(parts, 4, bucket="128KiB", **options).out)
        again = self.run_again(parts, 5, bucket="64KiB", **options)
        self.assertRegex(again.out, r"rounding may differ from the run before the checkpoint, which had 3 ranks, ring of fp32, "
                                    r"buckets of ")

    def test_ring_and_shm_are_bit_identical(self):
        ring, both = self.folder / "ring", self.folder / "both"
        options = {"ranks": 3, "model": "lenet"}
        self.run_to(ring, STEPS, all_reduce="ring", **options)
        self.run_to(both, 6, all_reduce="message-ring", **options)
        self.assertNotIn("rounding may differ", self.run_again(both, STEPS, all_reduce="shm", **options).out)
        self.assert_same_state(ring / "checkpoint.h5", both / "checkpoint.h5")

    def test_deferred_buckets_are_bit_identical(self):
        plain, deferred = self.folder / "plain", self.folder / "deferred"
        options = {"ranks": 3, "all_reduce": "ring", "model": "lenet", "bucket": "16KiB"}
        self.run_to(plain, STEPS, **options)
        self.run_to(deferred, 6, defer=0.7, **options)
        self.run_to(deferred, STEPS, defer=0.3, resume=True, **options)
        self.assert_same_state(plain / "checkpoint.h5", deferred / "checkpoint.h5")
        accuracy = [json.loads((out / "results.json").read_text())["test_accuracy"] for out in (plain, deferred)]
        self.assertEqual(*accuracy)

    def test_on_another_number_of_ranks(self):
        whole = self.folder / "whole"
        self.run_to(whole, STEPS)
        for ranks in (0, 3):
            with self.subTest(ranks=ranks):
                parts = self.folder / f"ranks-{ranks}"
                self.run_to(parts, 7)
                self.run_to(parts, STEPS, ranks=ranks, resume=True)
                # Close only if every step had the same samples as in the whole run: others change the parameters by 1e-2.
                self.assertLess(self.farthest(whole / "checkpoint.h5", parts / "checkpoint.h5"), 1e-4)

    def test_the_order_may_change_between_epochs_only(self):
        blocks = {"shuffle": "block,size=64"}
        for steps, status in ((5, 1), (13, 0)):  # within the first epoch, and at its end
            out = self.folder / str(steps)
            self.run_to(out, steps, ranks=0)
            again = helper.run(*self.training(out, max_steps=14, epochs=3, global_batch=40, resume=True, **blocks))
            self.assertEqual(again.status, status, again)
        out = self.folder / "5"
        again = helper.run(*self.training(out, max_steps=14, epochs=3, global_batch=40, resume=True, **blocks), ranks=2)
        self.assertEqual(len(again.messages), 1, again)
        self.assertRegex(again.messages[0], r"step-000000005.h5 was made within an epoch of 500 images, --shuffle global, but "
                                            r"this run has 500 images, --shuffle block,size=64,window=16")
        out = self.folder / "blocks"
        self.run_to(out, 5, ranks=0, **blocks)
        more = helper.write_data(self.folder / "d.h5", 501)
        for other in ({"shuffle": "block,size=64,window=2"}, {**blocks, "data": more, "data_changed": True}):
            again = helper.run(*self.training(out, max_steps=14, epochs=3, global_batch=40, resume=True, **other))
            self.assertIn("was made within an epoch of 500 images, --shuffle block,size=64,window=16",
                          again.err)

    def test_other_data_is_refused_unless_requested(self):
        out = self.folder / "out"
        self.run_to(out, 5, ranks=0)

        def change(name, edit):
            other = self.folder / f"{name}.h5"
            other.write_bytes(self.data.read_bytes())
            with h5py.File(other, "r+") as file:
                edit(file)
            return other

        def swap(file):
            file["train/labels"][...] = file["train/labels"][()][::-1]

        def brighten(file):
            file["test/images"][...] = file["test/images"][...] | 1

        def resume(data, ranks=0, **options):
            return helper.run(*self.training(out, max_steps=7, epochs=3, global_batch=40, resume=True, data=data, **options),
                              ranks=ranks)

        names = [f"kind {n}" for n in range(10)]
        changed = {"the classes": change("classes", lambda file: file.attrs.modify("classes", names)),
                   "the pixels' mean: [0-9.]+ before, 0.5 now":
                       change("mean", lambda file: file.attrs.modify("mean", np.float32([0.5]))),
                   "the pixels' std": change("std", lambda file: file.attrs.modify("deviation", np.float32([0.5]))),
                   "a hash of the training labels": change("labels", swap),
                   "a hash of the test images": change("pixels", brighten)}
        for field, data in changed.items():
            with self.subTest(field):
                result = resume(data)
                self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
                self.assertRegex(result.messages[0], "step-000000005.h5 was trained on other data, which differs in " + field)
                self.assertIn("--data-changed", result.messages[0])
        other = changed["a hash of the training labels"]
        result = resume(other, ranks=2, data_changed=True)
        self.assertEqual(result.status, 0, str(result))
        self.assertIn("the data was changed (--data-changed): a hash of the training labels", result.out + result.err)
        self.assertEqual(resume(other).status, 0)  # the checkpoint now belongs to this data
        recorded = json.loads((out / "results.json").read_text())["data_changes"]
        self.assertEqual([change["step"] for change in recorded], [5])
        self.assertIn("a hash of the training labels", recorded[0]["difference"])
        self.assertEqual(resume(self.data).status, 1)

    def test_intermediate_checkpoints(self):
        out = self.folder / "out"
        self.run_to(out, 9, checkpoint_every=4)
        plain = self.folder / "plain"
        self.run_to(plain, 9)
        self.assert_same_state(out / "checkpoint.h5", plain / "checkpoint.h5")  # writing one does not change the run

    def test_without_a_checkpoint_it_starts_from_the_beginning(self):
        fresh, whole = self.folder / "fresh", self.folder / "whole"
        result = self.succeed(
            *self.training(fresh, max_steps=6, global_batch=40, resume=True), ranks=2)
        self.assertRegex(result.out + result.err, r"(?i)nothing to resume")
        self.run_to(whole, 6)
        self.assert_same_state(fresh / "checkpoint.h5", whole / "checkpoint.h5")

    def test_a_complete_run_is_not_changed(self):
        out = self.folder / "out"
        self.train(out, ranks=2)
        before = (out / "checkpoint.h5").read_bytes()
        state = self.folder / "before.h5"
        state.write_bytes(before)
        self.train(out, ranks=2, resume=True)
        self.assert_same_state(state, out / "checkpoint.h5")

    def test_options_that_changed_are_named(self):
        out = self.folder / "out"
        cosine = {"schedule": "cosine", "lr": 0.1}
        self.train(out, epochs=2, **cosine)
        same = self.succeed(*self.training(out, epochs=2, resume=True, **cosine))
        self.assertNotIn("changed", same.out)
        more = self.succeed(*self.training(out, epochs=4, resume=True, **cosine))
        self.assertIn("options changed since the checkpoint: epochs 2 -> 4\n", more.out)
        before, after = re.search(r"the learning rate jumps from (\S+), of the last epoch, to (\S+)", more.out).groups()
        self.assertLess(float(before), 0.001)
        self.assertAlmostEqual(float(after), 0.05)  # the middle of the cosine
        slower = self.succeed(*self.training(out, epochs=5, resume=True, lr=0.1))
        self.assertIn('epochs 4 -> 5', slower.out)
        self.assertIn("schedule cosine -> constant", slower.out)

    def test_a_configuration_of_an_earlier_version_resumes_its_run(self):
        out, options = self.folder / "out", {"epochs": 2, "optimizer": "sgd,momentum=0.8,nesterov", "schedule": "step:1"}
        self.train(out, max_steps=3, **options)
        before = (out / "config.toml").read_text()
        for now, earlier in ((r'optimizer=.*', 'optimizer="sgd"\nmomentum=0.8\nnesterov=true\ntrust=0.001'),
                             (r'schedule=.*', 'schedule="step"\nlr-steps="1"\nlr-cycle=0\nlr-power=2\nlr-patience=10')):
            before = re.sub(now, earlier, before)
        (out / "config.toml").write_text(before)
        whole, file = self.folder / "whole", self.folder / "before.toml"
        file.write_text(before)
        resumed = self.succeed("train", "--config", file, "--max-steps", 6, "--resume")
        self.assertIn("options changed since the checkpoint: max-steps 3 -> 6\n", resumed.out)
        self.train(whole, max_steps=6, **options)
        self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")
        result = helper.run("train", "--config", file, "--momentum", 0.9)
        self.assertEqual((result.status, result.messages), (2, ["annulus: --momentum is now --optimizer sgd,momentum=0.9; "
                                                                "see annulus train --help"]))

    def test_more_epochs(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, ranks=2, epochs=3)
        self.train(parts, ranks=2, epochs=1)
        self.train(parts, ranks=2, epochs=3, resume=True)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        accuracy = [json.loads((out / "results.json").read_text())["test_accuracy"] for out in (whole, parts)]
        self.assertEqual(*accuracy)


if __name__ == "__main__":
    helper.main()
