"""A rank that hangs or diverges is named, and a job that lost a rank ends."""
import os
import pathlib
import re
import signal
import time

import h5py
import numpy as np
import onnx
from onnx import numpy_helper

import helper
from helper import run

STALL = 1.5  # seconds


class Faults(helper.ProgramTest):
    def inject(self, *faults, ranks=3, **options):
        options = {"bucket": "64KiB", "stall_timeout": STALL, **options}
        arguments = self.training(self.folder / "out", **options)
        for fault in faults:
            arguments += ["--inject", fault]
        return run(*arguments, ranks=ranks)

    def test_every_rank_reports_its_position_if_one_hangs(self):
        result = self.inject("hang:rank=1,step=5", all_reduce="ring")
        self.assertGreater(result.status, 0, str(result))
        self.assertLess(result.status, 128, str(result))
        self.assertLess(result.seconds, STALL + 8)
        lines = "\n".join(sorted(result.messages))
        where = r"rank {}: no progress for 1\.5 s .* in step 5: {}; all-reduce: {}"
        self.assertRegex(lines, where.format(1, "beginning the step", "idle"))
        stands = r"waiting for bucket 1 of (\d+)", r"bucket 1 of \1, reduce-scatter, ring step {} of 4, waiting for rank {}"
        self.assertRegex(lines, where.format(2, stands[0], stands[1].format(1, 1)))
        # Rank 2 sent its own chunk before it began to wait: rank 0 is one step ahead.
        self.assertRegex(lines, where.format(0, stands[0], stands[1].format(2, 2)))

    def test_a_hang_under_the_other_algorithms(self):
        # It depends on padding whether bucket 1, of the last layers, is a small array for shm (one barrier).
        for algorithm, where in (("shm", ", barrier 1 of [12], waiting for rank 0"), ("mpi", ""),
                                 ("message-ring", ", reduce-scatter, ring step 1 of 2, waiting for rank 0"),
                                 ("doubling", ", doubling exchange 1 of 1, waiting for rank 0")):
            with self.subTest(algorithm):
                result = self.inject("hang:rank=0,step=3", ranks=2, all_reduce=algorithm)
                self.assertGreater(result.status, 0, str(result))
                self.assertLess(result.seconds, STALL + 8)
                self.assertRegex(result.err, r"(?m)rank 1: no progress .* in step 3: waiting for bucket 1 of (\d+); "
                                             f"all-reduce: bucket 1 of \\1{where}$")

    def frozen(self, arguments, moment):
        """A job of 2 ranks; the second is frozen `moment` seconds after its start; None: once the run has begun."""
        process = helper.start(*arguments, ranks=2)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        ranks = []
        while len(ranks) < 2 and process.poll() is None:
            ranks = [rank for rank in helper.children(process.pid)
                     if pathlib.Path(f"/proc/{rank}/comm").read_text().strip() == "annulus"]
            time.sleep(0.005)
        time.sleep(moment)
        os.kill(ranks[1], signal.SIGSTOP)
        return process

    def test_a_rank_frozen_at_any_moment_of_the_start_ends_the_job(self):
        """Also before MPI_Init returns, while options are compared, and so on."""
        # Ten times that if ranks wait for each other. mpirun resumes the frozen rank a second before ending it, in
        # which that rank must not report as well.
        stall = 1.6
        training = lambda name: self.training(self.folder / name, epochs=100000, stall_timeout=stall)
        jobs = [self.frozen(training(f"out{moment}"), moment) for moment in (0.01, 0.1, 0.25, 0.5)]
        self.train(self.folder / "run")
        jobs.append(self.frozen(["eval", "--data", self.data, "--checkpoint", self.folder / "run", "--stall-timeout", stall],
                                0.01))
        since = time.monotonic()
        for job in jobs:
            result = helper.finish(job, 40, since)
            self.assertGreater(result.status, 0, str(result))
            self.assertRegex(result.err, r"(?m)^annulus: rank 0: no progress for .* s \(--stall-timeout\)")
            self.assertNotIn("rank 1: no progress", result.err)

    def freeze_in_steps(self, *options, after=0.0):
        """Jobs of 2 ranks with these options at once. Each rank 1 is frozen some time after the first metrics."""
        jobs = []
        for number, changes in enumerate(options):
            out = self.folder / str(number)
            jobs.append(helper.start(*self.training(out, **{"epochs": 100000, "checkpoint_every": 100000, "eval_every": 100000,
                                                            "stall_timeout": STALL, "metrics_every": 1, **changes}), ranks=2))
            self.addCleanup(lambda job=jobs[-1]: job.poll() is None and os.killpg(job.pid, signal.SIGKILL))
        for number, job in enumerate(jobs):
            metrics = self.folder / str(number) / "metrics.jsonl"
            while job.poll() is None and not (metrics.exists() and metrics.stat().st_size > 0):
                time.sleep(0.01 * (number + 1))
            time.sleep(after)
            ranks = [rank for rank in helper.children(job.pid)
                     if pathlib.Path(f"/proc/{rank}/comm").read_text().strip() == "annulus"]
            self.assertEqual(len(ranks), 2, options[number])
            os.kill(ranks[1], signal.SIGSTOP)
        since = time.monotonic()
        return [helper.finish(job, 40, since) for job in jobs]

    def test_a_rank_frozen_in_the_collectives_of_any_strategy(self):
        cases = ({"shards": 4}, {"strategy": "sharded", "clip_norm": 1}, {"pipeline": 2, "accumulate": 2},
                 {"strategy": "local", "sync_every": 4}, {"strategy": "async", "sync_every": 4},
                 {"strategy": "async", "sync_every": 4, "servers": 1}, {"model": "resnet20", "sync_batch_norm": True},
                 {"optimizer": "lars", "all_reduce": "doubling"}, {"optimizer": "muon"}, {"all_reduce": "mpi"},
                 {"all_reduce": "message-ring", "wire": "bf16", "defer": 0.5})
        for some in cases[:4], cases[4:8], cases[8:]:
            for options, result in zip(some, self.freeze_in_steps(*some)):
                with self.subTest(options):
                    self.assertGreater(result.status, 0, str(result))
                    self.assertRegex(result.err, rf"(?m)^annulus: rank 0: no progress for {STALL} s \(--stall-timeout\) in step")
                    self.assertLess(result.seconds, STALL + 10)
            self.setUp()  # other folders

    def test_a_rank_frozen_in_an_evaluation_or_a_checkpoint(self):
        """There other ranks may be late, so that waiting takes ten times as long."""
        data = helper.write_data(self.folder / "data.h5", test=20000)
        evaluates = {"data": data, "model": "resnet20", "eval_every": 1, "stall_timeout": 0.5}
        writes = {"model": "cnn", "checkpoint_every": 1, "stall_timeout": 0.5}
        for options, result in zip((evaluates, writes), self.freeze_in_steps(evaluates, writes, after=0.3)):
            with self.subTest(options):
                self.assertGreater(result.status, 0, str(result))
                self.assertRegex(result.err, r"(?m)^annulus: rank 0: no progress for .* s \(--stall-timeout\)")
                self.assertLess(result.seconds, 20)

    def test_a_rank_frozen_between_steps_is_noticed_as_soon_as_in_a_step(self):
        """Metrics of each step: ranks then wait for each other between steps for much of the time."""
        for result in self.freeze_in_steps(*[{}] * 4):
            self.assertRegex(result.err, rf"(?m)^annulus: rank 0: no progress for {STALL} s \(--stall-timeout\) in step")

    def test_one_process_alone(self):
        result = self.inject("hang:rank=0,step=2", ranks=0)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.err, r"rank 0: no progress .* in step 2")

    def test_a_slow_rank_is_no_stall(self):
        slow = self.inject("delay:rank=1,step=3,seconds=0.7", "delay:rank=2,seconds=0.05", max_steps=8)
        self.assertEqual(slow.status, 0, str(slow))
        self.assertGreater(slow.seconds, 1.1)

    def test_no_watchdog(self):
        result = self.inject("delay:rank=1,step=3,seconds=1", stall_timeout=0, max_steps=5)
        self.assertEqual(result.status, 0, str(result))

    def test_a_killed_rank_ends_the_job_and_the_checkpoint_is_complete(self):
        result = self.inject("kill:rank=1,step=7", checkpoint_every=3, stall_timeout=60, all_reduce="ring")
        self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
        self.assertLess(result.seconds, 8)
        self.assertRegex(result.err, r"rank 1 .* signal 9")
        checkpoint = self.folder / "out" / "checkpoint.h5"
        # The checkpoint of step 6 may not have been written yet.
        self.assertIn(helper.read_checkpoint(checkpoint)["attributes"]["step"], (3, 6))
        self.train(self.folder / "out", ranks=3, bucket="64KiB", all_reduce="ring", resume=True)
        self.train(self.folder / "whole", ranks=3, bucket="64KiB", all_reduce="ring")
        self.assert_same_state(checkpoint, self.folder / "whole" / "checkpoint.h5")

    def test_a_flipped_bit_is_detected_and_its_rank_named(self):
        result = self.inject("flip:rank=1,step=5", checkpoint_every=4)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], r"after step 8, first in .*: rank 1 ")
        checkpoint = helper.read_checkpoint(self.folder / "out" / "checkpoint.h5")
        self.assertEqual(checkpoint["attributes"]["step"], 4, "a checkpoint was made of parameters that had gone wrong")

    def test_divergence_ends_a_run_without_claims(self):
        """In `cnn` a ReLU is a part of its dense layer, and NaN must pass it."""
        out = self.folder / "out"
        result = self.inject(ranks=2, model="cnn", lr=1e30)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"step [23] \(epoch 1\): the loss is -?(nan|inf): training has diverged; lower --lr$")
        self.assertFalse((out / "checkpoint.h5").exists())

    def test_divergence_ends_a_run_of_any_strategy(self):
        for options in ({"strategy": "sharded"}, {"pipeline": 2, "accumulate": 2}, {"strategy": "local", "sync_every": 2},
                        {"strategy": "async", "sync_every": 2}, {"strategy": "async", "sync_every": "0.2s"}):
            with self.subTest(options):
                result = self.inject(ranks=2, model="cnn", lr=1e30, overwrite=True, **options)
                self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
                self.assertRegex(result.messages[0], r"step \d+ \(epoch 1\): .*training has diverged; lower --lr$")
                self.assertFalse((self.folder / "out" / "checkpoint.h5").exists())

    def not_finite_data(self):
        """A network whose weights are 0, and one image so bright that a gradient overflows while the loss does not."""
        network, data = self.folder / "net.onnx", self.folder / "bright.h5"
        make, count = onnx.helper.make_node, 30
        graph = onnx.helper.make_graph(
            [make("Flatten", ["image"], ["flat"]), make("Gemm", ["flat", "head.weight", "head.bias"], ["out"], transB=1)], "net",
            [onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 1, 4, 4])],
            [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["batch", 2])],
            [numpy_helper.from_array(np.zeros(shape, np.float32), name)
             for name, shape in (("head.weight", (2, 16)), ("head.bias", (2,)))])
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(network))
        with h5py.File(data, "w") as file:
            for split in "train", "test":
                file[f"{split}/images"] = np.zeros((count, 4, 4, 1), np.uint8)
                file[f"{split}/labels"] = np.full((count, 2), 1000, np.float32)
            file["train/images"][7] = 255
            file.attrs["mean"], file.attrs["deviation"] = np.float32([0]), np.float32([2e-38])
            file.attrs["values"] = ["a", "b"]
        return {"model": network, "data": data, "global_batch": 4, "lr": 0.01, "epochs": 1, "eval_every": "none"}

    def test_a_gradient_that_is_not_finite_is_named_and_skipped(self):
        options = self.not_finite_data()
        line = r"step (\d+): the gradient of head\.weight is not finite on rank \d: no update \(1 of at most 2 in a row\)"
        for number, changes in enumerate(({}, {"strategy": "sharded"}, {"shards": 4}, {"accumulate": 2, "optimizer": "adamw"},
                                          {"survive": True, "shards": 4}, {"defer": 0.5})):
            with self.subTest(changes):
                out = self.folder / f"skips-{number}"
                environment = {"OMPI_MCA_orte_enable_recovery": "1"} if "survive" in changes else None
                result = self.succeed(*self.training(out, **options, **changes, skip_not_finite=2), ranks=3, environment=environment)
                self.assertRegex(result.out, line)
                checkpoint = helper.read_checkpoint(out / "checkpoint.h5")
                self.assertEqual(checkpoint["attributes"]["step"], 8)
                weights = checkpoint["parameters"]
                self.assertTrue(all(np.isfinite(values).all() for values in weights.values()))
                self.assertGreater(min(abs(weights["head.bias"])), 0)
                self.assertEqual(abs(weights["head.weight"]).max(), 0)
        result = run(*self.training(self.folder / "ends", **options), ranks=3)
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("training has diverged", result.err)

    def test_too_many_gradients_that_are_not_finite_end_the_run(self):
        options = {**self.not_finite_data(), "shuffle": None}
        with h5py.File(options["data"], "r+") as file:
            file["train/images"][...] = 255
        out = self.folder / "out"
        result = run(*self.training(out, **options, skip_not_finite=2), ranks=2)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"step 3 \(epoch 1\): the gradient of head\.weight is not finite on rank 0, nor gradients on "
                                             r"1 other rank, after 2 steps without an update for this reason \(--skip-not-finite\)$")
        self.assertFalse((out / "checkpoint.h5").exists())

    def test_invalid_options(self):
        for text, names in (("melt:rank=1", "kill:, delay:, hang:, flip: or wrong:"), ("kill:rank=1", "needs step"),
                            ("delay:rank=1", "needs seconds"), ("hang:step=1", "needs rank"), ("hang:rank=x,step=1", "'x'"),
                            ("kill:rank=1,step=1,seconds=2", "unknown key 'seconds'"), ("hang:rank", "'rank' has no value")):
            with self.subTest(text):
                result = self.inject(text, ranks=0)
                self.assertEqual(result.status, 2, str(result))
                self.assertRegex(result.messages[0], re.escape(text) + ".*" + names)

    def test_fault_injection_is_not_in_the_help(self):
        self.assertNotIn("--inject", self.succeed("train", "--help").out)


if __name__ == "__main__":
    helper.main()
