"""With --take-over, a job waits until another that trains in the same folder has written a checkpoint, and continues."""
import json
import os
import signal

import helper
from helper import finish, run, start
from survive_test import RECOVERY, RUN, STEPS, UndisturbedTest, rank_processes


class TakeOver(UndisturbedTest):
    def start_frozen(self, out, ranks, **options):
        """A job whose ranks have been stopped at some point after its first checkpoint."""
        process = start(*self.training(out, inject=f"delay:rank={ranks - 1},seconds=0.05", **{**RUN, **options}), ranks=ranks,
                        environment=RECOVERY if "survive" in options else None)
        self.await_checkpoint(process, out)
        self.signal(process, signal.SIGSTOP)
        return process

    def signal(self, process, number):
        for rank in rank_processes(process.pid).values():
            os.kill(rank, number)

    def start_next(self, out, ranks, **options):
        """A job that waits for the run."""
        process = start(*self.training(out, resume=True, take_over=True, **{**RUN, **options}), ranks=ranks)
        self.await_file(process, out / "next/annulus.lock")
        return process

    def assert_completes(self, out, result):
        self.assertEqual(result.status, 0, str(result))
        self.assertRegex(result.out, rf"waiting for the job that trains in {out} \(host .*, process \d+\)")
        self.assertRegex(result.out, r"resuming after \d+ steps")
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")
        self.assertEqual(json.loads((out / "results.json").read_text())["status"], "complete")
        steps = [record["step"] for record in helper.metrics(out) if record["kind"] == "train"]
        self.assertEqual(steps, list(range(1, STEPS + 1)))
        self.assertFalse((out / "next").exists())

    def test_the_next_job_continues_on_another_number_of_ranks(self):
        for name, survive in (("alone", {}), ("surviving", {"survive": True})):
            with self.subTest(name):
                out = self.folder / name
                earlier = self.start_frozen(out, 2, **survive)
                later = self.start_next(out, 3)
                self.signal(earlier, signal.SIGCONT)
                result = finish(earlier)
                if survive:  # mpirun --enable-recovery always ends with 0
                    self.assertEqual(result.messages[1:], ["annulus: the job ends with status 76, ranks lost: 0"], str(result))
                else:
                    self.assertEqual((result.status, result.messages), (76, []), str(result))
                self.assertRegex(result.out, r"stopped after \d+ steps: another job continues this run")
                self.assert_completes(out, finish(later))

    def test_the_earlier_job_is_killed(self):
        out = self.folder / "out"
        earlier = self.start_frozen(out, 2)
        later = self.start_next(out, 3)
        self.signal(earlier, signal.SIGKILL)
        self.assert_completes(out, finish(later))
        finish(earlier)

    def test_survivors_keep_the_run_when_the_rank_that_writes_dies(self):
        out = self.folder / "out"
        earlier = self.start_frozen(out, 3, survive=True, checkpoint_every=15)
        later = self.start_next(out, 2)
        self.signal(earlier, signal.SIGCONT)
        os.kill(rank_processes(earlier.pid)[0], signal.SIGKILL)
        result = finish(earlier)
        self.assertEqual(result.messages[1:], ["annulus: the job ends with status 76, ranks lost: 1"], str(result))
        self.assertRegex(result.out, "rank 0 on .* was lost")
        self.assert_completes(out, finish(later))

    def test_a_job_that_is_stopped_hands_the_run_over(self):
        out = self.folder / "out"
        earlier = self.start_frozen(out, 1, checkpoint_every=30)
        later = self.start_next(out, 2)
        self.signal(earlier, signal.SIGTERM)
        self.signal(earlier, signal.SIGCONT)
        self.assertEqual(finish(earlier).status, 76)
        self.assert_completes(out, finish(later))

    def test_a_job_that_waits_can_be_stopped_and_the_other_goes_on(self):
        out = self.folder / "out"
        earlier = self.start_frozen(out, 2)
        later = self.start_next(out, 2)
        refused = run(*self.training(out, resume=True, take_over=True, **RUN))
        self.assertEqual(refused.status, 1, str(refused))
        self.assertRegex(refused.messages[0], r"another job waits to take this run over already \(host .*, process \d+\)")
        os.kill(rank_processes(later.pid)[1], signal.SIGTERM)
        result = finish(later)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertIn("stopped while waiting, as requested", result.out)
        self.signal(earlier, signal.SIGCONT)
        result = finish(earlier)
        self.assertEqual(result.status, 0, str(result))
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_without_another_job_it_resumes(self):
        out = self.folder / "out"
        result = run(*self.training(out, resume=True, take_over=True, **{**RUN, "max_steps": 12}), ranks=2)
        self.assertEqual(result.status, 0, str(result))
        self.assertNotIn("waiting for the job", result.out)
        self.assertFalse((out / "next").exists())
        self.succeed(*self.training(out, resume=True, take_over=True, **RUN), ranks=3)
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_it_needs_resume(self):
        result = run(*self.training(self.folder / "out", take_over=True))
        self.assertEqual(result.status, 2)
        self.assertRegex(result.messages[0], "--take-over requires --resume")


if __name__ == "__main__":
    helper.main()
