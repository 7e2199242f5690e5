"""With --strategy sharded, a run has the bits of a synchronous one, and checkpoints do not depend on the strategy."""
import helper


class Strategy(helper.ProgramTest):
    def run_with(self, name, ranks, strategy, **options):
        out = self.folder / name
        return out, self.train(out, ranks=ranks, strategy=strategy, bucket="20KiB", **options)

    def test_same_checkpoint(self):
        for ranks, options in ((2, {"model": "lenet", "optimizer": "adamw", "lr": 0.001, "momentum": None}),
                               (3, {"model": "resnet20", "weight_decay": 0.001, "all_reduce": "ring"}),
                               (4, {"model": "lenet", "all_reduce": "message-ring", "accumulate": 2})):
            with self.subTest(ranks=ranks):
                options = {"max_steps": 6, "eval_steps": 1, **options}
                (a, of_a), (b, of_b) = (self.run_with(f"{name}-{ranks}", ranks, name, **options)
                                        for name in ("synchronous", "sharded"))
                self.assert_same_state(a / "checkpoint.h5", b / "checkpoint.h5")
                self.assertEqual(*([epoch["train_loss"] for epoch in of["epochs"]] for of in (of_a, of_b)))

    def test_resuming_with_another_strategy(self):
        options = {"model": "lenet", "optimizer": "adamw", "lr": 0.001, "momentum": None, "eval_steps": 1, "epochs": 2}
        whole, _ = self.run_with("whole", 3, "synchronous", max_steps=9, **options)
        for steps, strategy in ((3, "sharded"), (6, "synchronous"), (9, "sharded")):
            parts, _ = self.run_with("parts", 3, strategy, max_steps=steps, resume=steps > 3 or None, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        # On another number of ranks, with either strategy.
        for strategy in ("synchronous", "sharded"):
            out = self.folder / f"on-2-{strategy}"
            out.mkdir()
            (out / "checkpoint.h5").write_bytes((parts / "checkpoint.h5").read_bytes())
            self.train(out, ranks=2, strategy=strategy, bucket="20KiB", max_steps=12, resume=True, batch=30, **options)
        self.assert_same_state(*(self.folder / f"on-2-{name}" / "checkpoint.h5" for name in ("synchronous", "sharded")))

    def test_refusals(self):
        for change, reason in (({"clip_norm": 1}, "--strategy sharded does not support --clip-norm yet"),
                               ({"ema": 0.9}, "--strategy sharded does not support --ema yet"),
                               ({"optimizer": "lars"}, "--strategy sharded does not support --optimizer lars yet"),
                               ({"defer": 0.5}, "--strategy sharded does not support --defer yet"),
                               ({"shards": 4}, "--strategy sharded does not support --shards yet"),
                               ({"all_reduce": "mpi"}, "needs an all-reduce of reduce-scatter and all-gather")):
            with self.subTest(change=change):
                result = helper.run(*self.training(self.folder / "out", strategy="sharded", **change), ranks=2)
                self.assertNotEqual(result.status, 0)
                self.assertIn(reason, result.err)


if __name__ == "__main__":
    helper.main()
