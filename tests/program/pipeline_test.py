"""With --pipeline, ranks that have a part of the network each train to the bits of a rank that has all of it."""
import json
import signal

import h5py
import helper
import numpy as np


class Pipeline(helper.ProgramTest):
    OPTIONS = {"model": "lenet", "batch": 16, "accumulate": 4, "threads": 1, "eval_steps": 2}

    def run_with(self, name, ranks, stages, **options):
        out = self.folder / name
        return out, self.train(out, ranks=ranks, pipeline=stages, **{**self.OPTIONS, **options})

    def test_same_bits_and_checkpoint(self):
        for model, ranks, stages in (("lenet", 2, 2), ("resnet20", 4, 2), ("resnet20", 4, 4)):
            with self.subTest(model=model, ranks=ranks, stages=stages):
                options = {"model": model, "max_steps": 6}
                whole, of_whole = self.run_with(f"whole-{model}-{stages}", ranks // stages, 1, **options)
                piped, of_piped = self.run_with(f"piped-{model}-{stages}", ranks, stages, **options)
                self.assert_same_state(whole / "checkpoint.h5", piped / "checkpoint.h5")
                self.assertEqual(*([epoch["train_loss"] for epoch in of["epochs"]] for of in (of_whole, of_piped)))
                for measure in ("test_loss", "test_accuracy"):
                    self.assertEqual(of_whole[measure], of_piped[measure])
                pipeline = of_piped["pipeline"]
                self.assertEqual(pipeline["stages"], stages)
                self.assertEqual(len(pipeline["cuts"]), stages - 1)
                self.assertEqual(len(of_piped["peak_memory_bytes"]), ranks)
                self.assertNotIn("pipeline", of_whole)

    def test_resuming_with_other_stages(self):
        options = {"optimizer": "adamw", "lr": 0.001, "clip_norm": 0.5, "ema": 0.9, "freeze": "conv1"}
        whole, _ = self.run_with("whole", 1, 1, max_steps=9, **options)
        for steps, ranks in ((3, 2), (6, 1), (9, 3)):
            parts, _ = self.run_with("parts", ranks, ranks, max_steps=steps, resume=steps > 3 or None, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_resuming_with_the_same_stages(self):
        trained, results = self.run_with("trained", 2, 2, max_steps=3)
        other = next(layer for layer in ("conv2", "fc1") if [layer] != results["pipeline"]["cuts"])

        def cut_elsewhere(file):
            self.assertEqual(list(file.attrs["cuts"]), results["pipeline"]["cuts"])
            file.attrs.create("cuts", [other], dtype=h5py.string_dtype())

        helper.edit_checkpoint(trained / "checkpoint.h5", cut_elsewhere)
        _, resumed = self.run_with("trained", 2, 2, max_steps=6, resume=True)
        self.assertEqual(resumed["pipeline"]["cuts"], [other])

    def test_weights_of_a_checkpoint(self):
        trained, _ = self.run_with("trained", 1, 1, max_steps=2)
        options = {"weights": trained, "max_steps": 1}
        whole, _ = self.run_with("whole", 1, 1, **options)
        piped, _ = self.run_with("piped", 2, 2, **options)
        self.assert_same_state(whole / "checkpoint.h5", piped / "checkpoint.h5")

    def test_logged_gradient_norm(self):
        options = {"max_steps": 4, "metrics_every": 2, "clip_norm": 0.5}
        outs = [self.run_with(f"run-{stages}", stages, stages, **options)[0] for stages in (1, 2)]
        norms = [[record["gradient_norm"] for record in helper.metrics(out) if "gradient_norm" in record] for out in outs]
        self.assertEqual(len(norms[0]), 2)
        np.testing.assert_allclose(norms[1], norms[0], rtol=1e-6)

    def test_a_shared_embedding(self):
        data = self.import_texts()
        options = {"data": data, "model": "gpt-tiny", "length": 32, "optimizer": "adamw", "lr": 0.004,
                   "global_batch": 12, "batch": None, "dropout": 0.1, "max_steps": 20, "epochs": 2, "eval_steps": 0}
        whole, of_whole = self.run_with("whole", 1, 1, **options)
        for stages in (2, 3):
            with self.subTest(stages=stages):
                piped, of_piped = self.run_with(f"piped-{stages}", stages, stages, **options)
                self.assertAlmostEqual(of_piped["validation_loss"], of_whole["validation_loss"], delta=1e-4)
                a, b = (helper.read_checkpoint(out / "checkpoint.h5")["parameters"] for out in (whole, piped))
                self.assertEqual(list(a), list(b))

    def test_timeline_and_metrics(self):
        timeline = self.folder / "timeline.json"
        out, _ = self.run_with("drawn", 2, 2, max_steps=10, timeline=timeline, metrics_every=2)
        events = json.loads(timeline.read_text())
        names = [{event["name"] for event in events if event["pid"] == rank} for rank in (0, 1)]
        self.assertIn("wait for next stage", names[0])
        self.assertNotIn("wait for previous stage", names[0])
        self.assertIn("wait for previous stage", names[1])

    def faulty(self, fault, **options):
        options = {**self.OPTIONS, "pipeline": 2, "epochs": 20, **options}
        return helper.run(*self.training(self.folder / "out", **options), "--inject", fault, ranks=2)

    def test_a_killed_stage_ends_the_job(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                result = self.faulty(f"kill:rank={rank},step=7", overwrite=True)
                self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
                self.assertLess(result.seconds, 15)

    def test_a_stage_that_hangs_is_named(self):
        result = self.faulty("hang:rank=0,step=5", stall_timeout=1.5)
        self.assertGreater(result.status, 0, str(result))
        self.assertRegex(result.err, r"rank 1: no progress .* in step 5: waiting for a neighbouring stage of the pipeline")

    def test_refusals(self):
        options = {**self.OPTIONS, "pipeline": 2}
        self.assert_all_refused((
            ({"shards": 4, "accumulate": None}, "--pipeline does not support --shards"),
            ({"strategy": "sharded"}, "--pipeline does not support --strategy sharded"),
            ({"strategy": "local", "accumulate": None}, "--pipeline does not support --strategy local"),
            ({"defer": 0.5}, "--pipeline does not support --defer")), **options)
        for ranks, number in (3, "3 ranks"), (1, "1 rank"):
            self.assert_all_refused((({}, f"{number} cannot be divided among 2 stages"),), ranks, **options)


if __name__ == "__main__":
    helper.main()
