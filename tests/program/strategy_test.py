"""With --strategy sharded, a run has the bits of a synchronous one; with local, ranks train apart for a while. Checkpoints
do not depend on the strategy."""
import helper


class Default(helper.ProgramTest):
    def test_auto(self):
        """The default is synchronous, also by the name auto, which a run's settings resolve."""
        for strategy in None, "auto":
            out = self.folder / str(strategy)
            self.train(out, model="mlp", max_steps=1, eval_steps=1, strategy=strategy)
            self.assertIn('strategy="synchronous"', (out / "config.toml").read_text())
        result = helper.run(*self.training(self.folder / "out", strategy="automatic"))
        self.assertIn("expected auto, synchronous, sharded, local or async", result.err)


class Sharded(helper.ProgramTest):
    def run_with(self, name, ranks, strategy, **options):
        out = self.folder / name
        return out, self.train(out, ranks=ranks, strategy=strategy, bucket="20KiB", **options)

    def test_same_checkpoint(self):
        runs = ((2, {"optimizer": "adamw", "lr": 0.001}),
                (3, {"model": "resnet20", "weight_decay": 0.001, "all_reduce": "ring"}),
                (4, {"all_reduce": "message-ring", "accumulate": 2}),
                (3, {"all_reduce": "message-ring", "wire": "bf16", "clip_norm": 0.5, "ema": 0.9}),
                (2, {"clip_norm": 0.5, "ema": 0.9, "freeze": "conv1"}),
                (2, {"ema": 0.9, "defer": 0.5}),
                (7, {"clip_norm": 0.5, "ema": 0.9, "optimizer": "lars", "batch": 8, "all_reduce": "ring"}))
        for number, (ranks, options) in enumerate(runs):
            with self.subTest(ranks=ranks, **options):
                options = {"model": "lenet", "max_steps": 6, "eval_steps": 1, **options}
                (a, of_a), (b, of_b) = (self.run_with(f"{name}-{number}", ranks, name, **options)
                                        for name in ("synchronous", "sharded"))
                self.assert_same_state(a / "checkpoint.h5", b / "checkpoint.h5")
                for key in "train_loss", "test_loss", "gradient_norm":
                    self.assertEqual(*([epoch.get(key) for epoch in of["epochs"]] for of in (of_a, of_b)))

    def test_resuming_with_another_strategy(self):
        for name, options in (("adamw", {"optimizer": "adamw", "lr": 0.001, "clip_norm": 0.5,
                                         "ema": 0.9}),
                              ("lars", {"all_reduce": "ring", "optimizer": "lars", "ema": 0.9, "freeze": "conv1"})):
            with self.subTest(name):
                options = {"model": "lenet", "eval_steps": 1, "epochs": 2, **options}
                whole, _ = self.run_with(f"{name}-whole", 3, "synchronous", max_steps=9, **options)
                for steps, strategy in ((3, "sharded"), (6, "synchronous"), (9, "sharded")):
                    parts, _ = self.run_with(f"{name}-parts", 3, strategy, max_steps=steps, resume=steps > 3 or None,
                                             **options)
                self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
                # On another number of ranks, with either strategy.
                on_two = [self.folder / f"{name}-on-2-{strategy}" for strategy in ("synchronous", "sharded")]
                for out, strategy in zip(on_two, ("synchronous", "sharded")):
                    out.mkdir()
                    (out / "checkpoint.h5").write_bytes((parts / "checkpoint.h5").read_bytes())
                    self.train(out, ranks=2, strategy=strategy, bucket="20KiB", max_steps=12, resume=True, batch=30,
                               **options)
                self.assert_same_state(*(out / "checkpoint.h5" for out in on_two))

    def test_refusals(self):
        self.assert_all_refused((
            ({"optimizer": "lars", "defer": 0.5}, "--defer does not go with --optimizer lars"),
            ({"shards": 4}, "--strategy sharded does not support --shards, because a sum of shards in a tree has no reduce-scatter"),
            ({"all_reduce": "mpi"}, "needs an all-reduce of reduce-scatter and all-gather")), strategy="sharded")


def assert_waits_less_in_timed_rounds(test, run):
    def wait(rounds):
        _, results = run(f"every-{rounds}", sync_every=rounds, inject="delay:rank=1,seconds=0.2")
        return results["ledger"]["ranks"]["waiting_for_slower_ranks"][0]
    waits = dict(helper.at_once(wait, ("4", "1s")))
    test.assertLess(waits["1s"], 0.5 * waits["4"])


class RoundsTest(helper.ProgramTest):
    def run_rounds(self, name, ranks=2, **options):
        """A run of the class's strategy, in rounds of 4 steps."""
        out = self.folder / name
        return out, self.train(out, ranks=ranks, **{"strategy": self.STRATEGY, "sync_every": 4, "batch": 10,
                                                    "bucket": "20KiB", "eval_steps": 1, **options})


class Local(RoundsTest):
    STRATEGY = "local"

    def test_rounds(self):
        for name, options in (("average", {}), ("nesterov", {"outer": "nesterov"})):
            with self.subTest(name):
                out, results = self.run_rounds(name, ranks=3, model="resnet20", epochs=2, metrics_every=5, **options)
                # 500 images are 17 steps of 30: in rounds of 4, 4, 4, 4 and 1 in each epoch.
                self.assertEqual([epoch["steps"] for epoch in results["epochs"]], [17, 17])
                logged = [record["step"] for record in helper.metrics(out) if record["kind"] == "train"]
                self.assertEqual(logged, [8, 12, 16, 21, 25, 33])
                losses = [epoch["train_loss"] for epoch in results["epochs"]]
                self.assertLess(losses[1], 0.8 * losses[0])

    def test_resuming(self):
        for name, options in (("sgd", {"outer": "nesterov", "ema": 0.9}),
                              ("adamw", {"optimizer": "adamw", "lr": 0.001, "model": "lenet"}),
                              ("bf16", {"wire": "bf16", "all_reduce": "message-ring", "model": "resnet20"})):
            with self.subTest(name):
                options = {"ranks": 3, "checkpoint_every": 8, "eval_every": "end", "epochs": 2, **options}
                whole, _ = self.run_rounds(f"{name}-whole", max_steps=25, **options)
                parts, _ = self.run_rounds(f"{name}-parts", max_steps=8, **options)
                parts, _ = self.run_rounds(f"{name}-parts", max_steps=25, resume=True, **options)
                self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_resuming_with_another_strategy(self):
        out, _ = self.run_rounds("run", max_steps=8, outer="nesterov", optimizer="adamw", lr=0.001)
        for steps, options in ((12, {"strategy": "synchronous", "sync_every": None}),
                               (16, {"strategy": "sharded", "sync_every": None}), (20, {"ranks": 3, "batch": 7})):
            self.run_rounds("run", max_steps=steps, resume=True, optimizer="adamw", lr=0.001, **options)
            attributes = helper.read_checkpoint(out / "checkpoint.h5")["attributes"]
            self.assertEqual(int(attributes["step"]), steps)

    def test_metrics_do_not_change_the_weights(self):
        runs = [self.run_rounds(f"every-{every}", ranks=3, model="resnet20", max_steps=16,
                               metrics_every=every)[0] for every in (4, 1000)]
        self.assert_same_state(*(out / "checkpoint.h5" for out in runs))

    def test_slow_rank(self):
        """In timed rounds a slow rank makes fewer updates, and the other one hardly waits for it."""
        assert_waits_less_in_timed_rounds(self, self.run_rounds)

    def test_refusals(self):
        self.assert_all_refused((
            ({"shards": 4}, "--strategy local does not support --shards"),
            ({"accumulate": 2}, "--strategy local does not support --accumulate"),
            ({"defer": 0.5}, "--strategy local does not support --defer"),
            ({"sync_batch_norm": True}, "--strategy local does not support --sync-batch-norm"),
            ({"wire": "fp16"}, "--strategy local does not support --wire fp16"),
            ({"wire": "int8"}, "--wire: expected fp32, bf16 or fp16"),
            ({"strategy": "synchronous", "outer": "nesterov"}, "belongs to --strategy local"),
            ({"sync_every": "1epoch"}, "'1epoch' is not the length of a round"),
            ({"outer": "adam"}, "--outer"),
            ({"strategy": "synchronous", "sync_every": 5}, "belongs to --strategy local")), strategy="local")


class Async(RoundsTest):
    STRATEGY = "async"

    def test_without_staleness(self):
        """Has the bits of a synchronous run, also if rounds or epochs end within it."""
        for ranks, options in ((1, {"model": "lenet"}), (2, {"model": "resnet20", "weight_decay": 0.001}),
                               (3, {"model": "lenet", "optimizer": "adamw", "lr": 0.001, "ema": 0.9})):
            with self.subTest(ranks=ranks):
                options = {"ranks": ranks, "epochs": 2, "max_steps": -(-500 // (10 * ranks)) + 4, **options}
                (a, of_a), (b, of_b) = (self.run_rounds(f"{name}-{ranks}", **run, **options) for name, run in
                                        (("async", {"staleness": 0}),
                                         ("synchronous", {"strategy": "synchronous", "sync_every": None,
                                                          "all_reduce": "ring"})))  # in this order owners add
                self.assert_same_state(a / "checkpoint.h5", b / "checkpoint.h5")
                self.assertEqual(*([epoch.get("test_loss") for epoch in of["epochs"]] for of in (of_a, of_b)))
                self.assertEqual(of_a["ledger"]["staleness"]["mean"], 0)

    def test_staleness(self):
        """No gradient is older than the bound, and each is applied once: there are as many as parts."""
        out, results = self.run_rounds("run", ranks=3, epochs=2, staleness=2, model="resnet20", metrics_every=1)
        histogram = results["ledger"]["staleness"]["histogram"]
        self.assertLessEqual(len(histogram), 3)
        self.assertEqual(sum(histogram), 3 * 2 * 17)  # 500 images are 17 steps of 30
        losses = [epoch["train_loss"] for epoch in results["epochs"]]
        self.assertLess(losses[1], 0.8 * losses[0])
        records = [record for record in helper.metrics(out) if record["kind"] == "train"]
        self.assertEqual(sum(sum(record["staleness_histogram"]) for record in records), sum(histogram))

    def test_resuming(self):
        adamw = {"optimizer": "adamw", "lr": 0.001, "ema": 0.9}
        out, _ = self.run_rounds("run", max_steps=8, **adamw)
        for steps, options in ((12, {"strategy": "synchronous", "sync_every": None}), (16, {"ranks": 3, "batch": 7}),
                               (20, {"strategy": "local"}), (24, {"ranks": 1, "batch": 20})):
            self.run_rounds("run", max_steps=steps, resume=True, **adamw, **options)
            attributes = helper.read_checkpoint(out / "checkpoint.h5")["attributes"]
            self.assertEqual(int(attributes["step"]), steps)

    def test_slow_rank(self):
        """In timed rounds a slow rank has fewer samples, and the other one hardly waits for it."""
        assert_waits_less_in_timed_rounds(self, self.run_rounds)

    def test_servers(self):
        """The last ranks compute nothing, but weights are theirs: with them a run has the bits of one without."""
        for name, ranks, options in (("alone", 1, {}), ("served", 2, {"servers": 1}), ("by two", 3, {"servers": 2})):
            out, results = self.run_rounds(name, ranks, staleness=0, batch=20, max_steps=12, **options)
            self.assertEqual(results.get("servers", 0), ranks - 1)
            self.assert_same_state(self.folder / "alone" / "checkpoint.h5", out / "checkpoint.h5")
            compute = results["ledger"]["ranks"]["compute"]
            self.assertTrue(all(seconds < 0.5 * compute[0] for seconds in compute[1:]), compute)

    def test_servers_in_timed_rounds(self):
        out, results = self.run_rounds("run", 4, servers=2, sync_every="1s", epochs=2)
        losses = [epoch["train_loss"] for epoch in results["epochs"]]
        self.assertLess(losses[1], 0.9 * losses[0])

    def test_lost_and_frozen_ranks(self):
        self.assert_all_refused((
            ({"inject": "kill:rank=1,step=6"}, "rank"),
            ({"inject": "hang:rank=1,step=6"}, "waiting for other ranks' steps")),
            ranks=3, strategy="async", stall_timeout=2)

    def test_refusals(self):
        self.assert_all_refused((
            ({"shards": 4}, "--strategy async does not support --shards"),
            ({"accumulate": 2}, "--strategy async does not support --accumulate"),
            ({"clip_norm": 1}, "--strategy async does not support --clip-norm"),
            ({"optimizer": "lars"}, "--strategy async does not support --optimizer lars"),
            ({"wire": "bf16"}, "--strategy async does not support --wire"),
            ({"pipeline": 2}, "--pipeline does not support --strategy async"),
            ({"servers": 2}, "--servers 2: at least one of 2 ranks must compute"),
            ({"strategy": "local", "staleness": 2}, "--staleness belongs to --strategy async, and this is local")),
            strategy="async")


if __name__ == "__main__":
    helper.main()
