"""A signal, as batch systems send before a time limit, ends a run with a checkpoint to resume from."""
import json
import os
import signal
import time

import helper
from helper import children, read_checkpoint


class Signals(helper.ProgramTest):
    def endless(self, out, ranks, **options):
        """A training run that has written its first checkpoint."""
        process = helper.start(
            *self.training(out, epochs=1000000, global_batch=40, **options), ranks=ranks)
        self.await_checkpoint(process, out)
        return process

    def check_stopped(self, out, ranks, result, **options):
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertLess(result.seconds, 10)
        step = int(read_checkpoint(out / "checkpoint.h5")["attributes"]["step"])
        self.assertGreaterEqual(step, 13)
        # The checkpoint equals that of an uninterrupted run at this step, and so do the following ones.
        whole = self.folder / "whole"
        for steps in (step, step + 3):
            self.train(whole, ranks=ranks, epochs=1000000, global_batch=40, max_steps=steps, resume=True, **options)
            if steps > step:
                self.train(out, ranks=ranks, epochs=1000000, global_batch=40, max_steps=steps, resume=True, **options)
            self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")

    def test_one_process(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(number.name):
                self.folder = self.folder / number.name
                out = self.folder / "out"
                process = self.endless(out, ranks=0)
                process.send_signal(number)
                self.check_stopped(out, 0, helper.finish(process))

    def test_mpirun_passes_it_to_every_rank(self):
        out = self.folder / "out"
        process = self.endless(out, ranks=2)
        process.send_signal(signal.SIGUSR1)  # mpirun handles its own SIGTERM: it ends the job
        self.check_stopped(out, 2, helper.finish(process))

    def test_one_rank_gets_it_and_all_stop_at_one_step(self):
        out = self.folder / "out"
        process = self.endless(out, ranks=3, model="lenet")
        ranks = children(process.pid)
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[-1], signal.SIGTERM)
        self.check_stopped(out, 3, helper.finish(process), model="lenet")

    def test_every_rank_gets_it_one_after_another(self):
        out = self.folder / "out"
        process = self.endless(out, ranks=2)
        for rank in children(process.pid):
            os.kill(rank, signal.SIGTERM)
            time.sleep(0.005)
        self.check_stopped(out, 2, helper.finish(process))

    def test_in_the_middle_of_an_evaluation(self):
        out, data = self.folder / "out", helper.write_data(self.folder / "data.h5", test=50000)
        options = {"data": data, "model": "resnet20", "max_steps": 2, "batch": 4, "checkpoint_every": 1,
                   "eval_every": "end"}
        process = helper.start(*self.training(out, **options), ranks=2)
        self.await_checkpoint(process, out)  # of the first step; the evaluation after the second takes long
        os.kill(children(process.pid)[1], signal.SIGTERM)
        result = helper.finish(process)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertEqual(json.loads((out / "results.json").read_text())["evaluations"], [])
        results = self.train(out, ranks=2, resume=True, eval_steps=5, **options)  # the interrupted evaluation is repeated
        self.assertEqual([one["step"] for one in results["evaluations"]], [2])
        self.assertEqual(results["status"], "complete")

    def delayed(self, stage, step=0, rank=0):
        return "--inject", f"delay:rank={rank},step={step},seconds=2,at={stage}"

    def test_during_a_checkpoint(self):
        """Written under a temporary name, renamed, linked: each time training goes on, and the writer is in between."""
        options = {"model": "lenet", "epochs": 1000000, "global_batch": 40, "checkpoint_every": 5, "eval_every": "none"}
        whole = self.folder / "whole"
        self.train(whole, ranks=2, **options, max_steps=60)
        def stop(case):
            stage, file = case
            out = self.folder / stage
            process = helper.start(*self.training(out, **options, max_steps=60, inject="delay:rank=1,seconds=0.02"),
                                   *self.delayed(stage, step=5), ranks=2)
            self.await_file(process, out / file)
            for rank in children(process.pid):
                os.kill(rank, signal.SIGTERM)
            return out, helper.finish(process)
        for (stage, _), (out, result) in helper.at_once(stop, (
                ("written", "checkpoints/step-000000005.h5.partial"), ("renamed", "checkpoints/step-000000005.h5"),
                ("linked", "checkpoint.h5"))):
            with self.subTest(stage):
                self.assertEqual(result.status, helper.STOPPED, str(result))
                self.assertGreaterEqual(read_checkpoint(out / "checkpoint.h5")["attributes"]["step"], 5)
                self.train(out, ranks=2, **options, max_steps=60, resume=True)
                self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")

    def test_before_the_first_step(self):
        """It ends the job, and the same command trains."""
        options = {"model": "lenet", "max_steps": 5, "eval_steps": 1}
        whole = self.folder / "whole"
        self.train(whole, ranks=2, **options)
        def stop(stage):
            out = self.folder / stage
            process = helper.start(*self.training(out, **options), *self.delayed(stage), *self.delayed(stage, rank=1), ranks=2)
            while process.poll() is None and len(children(process.pid)) < 2:
                time.sleep(0.01)
            time.sleep(0.7)
            for rank in children(process.pid):
                os.kill(rank, signal.SIGTERM)
            return out, helper.finish(process)
        for stage, (out, result) in helper.at_once(stop, ("compared", "claimed", "planned")):
            with self.subTest(stage):
                self.assertNotIn(result.status, (0, 1, 2), str(result))
                self.assertLess(result.seconds, 10)
                self.train(out, ranks=2, **options, resume=True)
                self.assert_same_state(whole / "checkpoint.h5", out / "checkpoint.h5")

    def test_it_may_come_while_a_matrix_product_is_computed(self):
        """oneDNN's products keep the stack pointer in a buffer: a handler that runs there overwrites the memory before
        it, which is not always visible (but in stop_signals_test.cpp)."""
        for threads in (1, 2):
            with self.subTest(threads=threads):
                out = self.folder / f"out{threads}"
                process = helper.start(
                    *self.training(out, epochs=1000000, global_batch=500, checkpoint_every="1step", threads=threads))
                self.await_checkpoint(process, out)
                deadline = time.monotonic() + 20
                while process.poll() is None and time.monotonic() < deadline:
                    process.send_signal(signal.SIGUSR1)
                    time.sleep(0.0002)
                result = helper.finish(process)
                self.assertEqual(result.status, helper.STOPPED, str(result))

    def test_a_warning_may_come_more_than_once(self):
        out = self.folder / "out"
        process = self.endless(out, ranks=2, checkpoint_every=1, inject="delay:rank=1,seconds=0.3")
        ranks = children(process.pid)
        for _ in range(2):
            for rank in ranks:
                os.kill(rank, signal.SIGUSR1)
            time.sleep(0.05)
        self.assertEqual(helper.finish(process).status, helper.STOPPED)


if __name__ == "__main__":
    helper.main()
