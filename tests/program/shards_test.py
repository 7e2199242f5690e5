"""With --shards, a run has the same bits on any number of ranks."""
import json

import helper
from helper import read_checkpoint

SCORE = ("correct", "count", "top5", "loss_bits")


class Shards(helper.ProgramTest):
    def run_on(self, ranks, **options):
        """Trains on 500 images. In the last step of an epoch only 4 of the 8 shards have an image."""
        out = self.folder / f"{options.get('model', 'mlp')}-{ranks}-{options.get('threads', 1)}"
        return out, self.train(out, ranks=ranks, **{"global_batch": 62, "shards": 8, "epochs": 2, **options})

    def assert_same_run(self, a, b):
        (a, of_a), (b, of_b) = a, b
        self.assert_same_state(a / "checkpoint.h5", b / "checkpoint.h5")
        attributes = [read_checkpoint(out / "checkpoint.h5")["attributes"] for out in (a, b)]
        for name in SCORE:
            self.assertEqual(*(one.get(name) for one in attributes), name)
        losses = [[(epoch["train_loss"], epoch["test_loss"]) for epoch in of["epochs"]] for of in (of_a, of_b)]
        self.assertEqual(*losses)

    def test_ranks(self):
        options = {"model": "lenet", "weight_decay": 0.001, "clip_norm": 1, "ema": 0.9, "bucket": "20KiB"}
        alone = self.run_on(1, **options)
        self.assertEqual(read_checkpoint(alone[0] / "checkpoint.h5")["attributes"]["step"], 18)
        for ranks in (2, 3, 4, 7):
            with self.subTest(ranks=ranks):
                self.assert_same_run(self.run_on(ranks, **options), alone)

    def test_batch_norm_and_threads(self):
        for threads in (1, 2):
            runs = [self.run_on(ranks, model="resnet20", optimizer="lars", max_steps=5, threads=threads, eval_steps=1)
                    for ranks in (1, 3)]
            self.assert_same_run(*runs)

    def test_text(self):
        data = self.import_texts()
        checkpoints = []
        for ranks in (1, 2, 3):
            out = self.folder / f"text-{ranks}"
            self.succeed("train", "--data", data, "--model", "gpt-tiny", "--length", 32, "--out", out, "--shards", 5,
                         "--global-batch", 12, "--optimizer", "adamw", "--lr", 0.004, "--dropout", 0.1, "--max-steps", 20,
                         "--epochs", 2, ranks=ranks)
            checkpoints.append(out / "checkpoint.h5")
        for checkpoint in checkpoints[1:]:
            self.assert_same_state(checkpoints[0], checkpoint)

    def test_resuming_on_other_ranks(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        options = {"global_batch": 62, "shards": 8, "epochs": 2}
        self.train(whole, ranks=2, max_steps=14, **options)
        for steps, ranks in ((4, 3), (9, 1), (14, 4)):
            result = self.succeed(*self.training(parts, max_steps=steps, resume=True, **options), ranks=ranks)
            self.assertNotIn("rounding may differ", result.out)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        for change, reason in (({"shards": 4}, "was made with --shards 8"), ({"shards": None}, "was made with --shards 8"),
                               ({"threads": 2}, "was made with --shards and --threads 1")):
            result = helper.run(*self.training(parts, max_steps=16, resume=True, **{**options, **change}), ranks=2)
            self.assertEqual(len(result.messages), 1, result)
            self.assertIn(reason, result.messages[0])

    def run_on_different_processors(self, *arguments):
        """Rank 0 on this processor, rank 1 on one with SSE4.1 only, as far as oneDNN knows."""
        first = helper.command(arguments, 1)
        narrow = [":", "-np", "1", "-x", "ONEDNN_MAX_CPU_ISA=SSE41", helper.ANNULUS, *map(str, arguments)]
        return helper.finish(helper.start_command(first + narrow))

    def test_different_processors(self):
        options = {"model": "resnet20", "global_batch": 62, "shards": 8, "max_steps": 3}
        alone, mixed = self.folder / "alone", self.folder / "mixed"
        self.train(alone, instruction_set="sse4.1", **options)
        result = self.run_on_different_processors(*self.training(mixed, **options))
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.err, r"annulus: ranks have different processors: all compute with sse4\.1, "
                                     r"as rank 1 on \S+ has no wider instruction set\n")
        self.assert_same_state(alone / "checkpoint.h5", mixed / "checkpoint.h5")
        again = self.succeed(*self.training(mixed, resume=True, **{**options, "max_steps": 4}))
        self.assertIn("rounding may differ from the run before the checkpoint, which had tree of 8 shards, 1 thread(s), "
                      "instruction set sse4.1", again.out)
        refused = self.run_on_different_processors(
            *self.training(self.folder / "refused", instruction_set="avx2", **options))
        self.assertEqual(refused.status, 1, refused)
        self.assertRegex(refused.messages[0], r"--instruction-set avx2: the processor of rank 1 on \S+ has only sse4\.1: "
                                              r"give auto or sse4\.1")

    def test_evaluation_does_not_depend_on_the_ranks(self):
        out, _ = self.run_on(1, max_steps=3)
        found = []
        for ranks in (1, 2, 3, 4):
            file = self.folder / f"{ranks}.json"
            self.succeed("eval", "--data", self.data, "--checkpoint", out, "--batch", 7, "--threads", 1, "--json", file,
                         ranks=ranks)
            found.append(json.loads(file.read_text()))
        self.assertEqual(found[1:], found[:1] * 3)

    def test_refusals(self):
        self.assert_all_refused((
            ({"shards": 2}, "2 shards are too few for 3 ranks: use --shards 3 or more"),
            ({"global_batch": 7}, "--shards 8: a global batch of 7 has fewer samples"),
            ({"accumulate": 2}, "--shards does not go with --accumulate, because shards are computed one by one anyway"),
            ({"sync_batch_norm": True}, "--shards does not go with --sync-batch-norm"),
            ({"all_reduce": "ring"}, "--shards does not go with --all-reduce, because it sums in an order of its own")),
            ranks=3, global_batch=62, shards=8)


if __name__ == "__main__":
    helper.main()
