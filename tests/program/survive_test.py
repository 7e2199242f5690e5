"""With --survive, a run goes on when ranks die, and ends with the same bits."""
import json
import os
import pathlib
import signal
import subprocess

import helper
from helper import finish, run, start

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The same as mpirun --enable-recovery.
RECOVERY = {"OMPI_MCA_orte_enable_recovery": "1", "ANNULUS_REPORT_STATUS": "1"}
RUN = {"model": "lenet", "shards": 6, "global_batch": 48, "epochs": 3, "checkpoint_every": 5, "eval_every": 7, "ema": 0.9,
       "metrics_every": 1}
STEPS = 33


def rank_processes(launcher):
    """The processes of mpirun's ranks, by their rank in the job."""
    found = {}
    for process in helper.children(launcher):
        environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
        for variable in environment:
            if variable.startswith("OMPI_COMM_WORLD_RANK="):
                found[int(variable.split("=")[1])] = process
    return found


class UndisturbedTest(helper.ProgramTest):
    """Gives each class an undisturbed run, to be compared with."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls.shared / "undisturbed"
        result = run(*cls.training(cls.undisturbed, **RUN))
        assert result.status == 0, str(result)


class Survive(UndisturbedTest):
    def start_run(self, out, ranks=4, **options):
        return start(*self.training(out, survive=True, **{**RUN, **options}), ranks=ranks, environment=RECOVERY)

    def assert_went_on(self, out, result, lost):
        """`lost`: ranks, and the step before which each died; None if that is not known."""
        self.assertEqual(result.messages, [f"annulus: the job ends with status 0, ranks lost: {len(lost)}"], str(result))
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")
        self.assertEqual((out / "best.h5").resolve().name, (self.undisturbed / "best.h5").resolve().name)
        results, undisturbed = (json.loads((folder / "results.json").read_text()) for folder in (out, self.undisturbed))
        self.assertEqual(results["status"], "complete")
        self.assertEqual(sorted(loss["rank"] for loss in results["losses"]), sorted(lost))
        records = helper.metrics(out)
        for loss in results["losses"]:
            step = lost[loss["rank"]]
            self.assertGreater(loss["seconds"], 0)
            if step is not None:  # others may have completed the step before it, but not begun the one after
                self.assertIn(loss["step"] + loss["repeated_steps"], (step - 1, step))
            self.assertIn(f"rank {loss['rank']} on {loss['host']} was lost", result.out)
            record, = [record for record in records if record.get("lost_rank") == loss["rank"]]
            self.assertEqual((record["kind"], record["step"]), ("lost", loss["step"]))
            self.assertAlmostEqual(record["recovery_seconds"], loss["seconds"], delta=2)  # the writer may have died
        for what in ("evaluations", "epochs"):
            of_both = [[{**one, "seconds": 0} for one in of[what]] for of in (results, undisturbed)]
            for one, other in zip(*of_both, strict=True):
                for key in {"step", "epoch", "images", "steps", "train_loss", "train_accuracy", "test_loss"} & set(one):
                    self.assertEqual(one[key], other[key], f"{what}: {key}")
        steps = [record["step"] for record in records if record["kind"] == "train"]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], STEPS)

    def test_ranks_die_one_by_one(self):
        for number, deaths in enumerate(({0: 9}, {3: 9}, {1: 8, 0: 20}, {2: 5, 3: 6, 0: 30}, {0: 16, 1: 16})):
            with self.subTest(deaths=deaths):
                out = self.folder / str(number)
                faults = [word for rank, step in deaths.items() for word in ("--inject", f"kill:rank={rank},step={step}")]
                process = start(*self.training(out, survive=True, **RUN), *faults, ranks=4, environment=RECOVERY)
                result = finish(process)
                self.assert_went_on(out, result, deaths)

    def test_the_writer_of_checkpoints_dies(self):
        for stage in ("written", "renamed", "linked"):
            with self.subTest(stage=stage):
                out = self.folder / stage
                process = self.start_run(out, ranks=3, inject=f"kill:rank=0,step=15,at={stage}")
                self.assert_went_on(out, finish(process), {0: None})

    def test_a_frozen_rank_is_given_up_and_ended(self):
        out = self.folder / "out"
        process = self.start_run(out, ranks=3, lost_after=1, inject="delay:rank=0,seconds=0.03")
        self.await_checkpoint(process, out)
        frozen = rank_processes(process.pid)[1]
        os.kill(frozen, signal.SIGSTOP)
        result = finish(process)
        self.assert_went_on(out, result, {1: None})
        loss, = json.loads((out / "results.json").read_text())["losses"]
        self.assertGreaterEqual(loss["seconds"], 1)
        self.assertFalse(pathlib.Path(f"/proc/{frozen}").exists())

    def test_too_few_ranks_stop_with_a_checkpoint(self):
        out = self.folder / "out"
        process = self.start_run(out, ranks=3, min_ranks=3, inject="kill:rank=2,step=12")
        result = finish(process)
        self.assertEqual(result.messages, ["annulus: the job ends with status 75, ranks lost: 1"], str(result))
        self.assertIn("fewer ranks than --min-ranks 3", result.out)
        stopped = helper.read_checkpoint(out / "checkpoint.h5")["attributes"]["step"]
        self.assertIn(stopped, (12, 13))
        self.succeed(*self.training(out, resume=True, **RUN), ranks=2)
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_a_rank_is_excluded_by_hand(self):
        out = self.folder / "out"
        process = self.start_run(out, ranks=3, inject="delay:rank=2,seconds=0.2")
        self.await_checkpoint(process, out)
        refused = run("control", out, "exclude", 3)
        self.assertEqual((refused.status, refused.messages), (1, [f"annulus: {out}: there is no rank 3"]))
        self.assertEqual(self.succeed("control", out, "exclude", 2).out, "the run goes on without rank 2\n")
        self.assert_went_on(out, finish(process), {2: None})
        self.assertRegex(run("control", out, "exclude", 0).err, "no run is writing to this folder")

    def test_errors_still_end_all_ranks(self):
        out = self.folder / "out"
        result = finish(self.start_run(out, ranks=3, lr=1e30, lost_after=0.5), 20)
        *errors, status = result.messages
        self.assertTrue(errors and all("the loss is" in line for line in errors), str(result))
        self.assertEqual(status, "annulus: the job ends with status 1, ranks lost: 0")

    def test_every_end_reports_a_status(self):
        for ranks, options, status in ((1, {"max_steps": 2}, 0), (2, {"max_steps": 2}, 0), (2, {"data": "none.h5"}, 1),
                                       (2, {"no_such_option": 1}, 2)):
            with self.subTest(ranks=ranks, options=options):
                result = finish(self.start_run(self.folder / str(ranks), ranks=ranks, **options))
                self.assertEqual(result.messages[-1], f"annulus: the job ends with status {status}, ranks lost: 0", str(result))

    def test_random_disturbances(self):
        """A short form of scripts/chaos, with scripts/launch."""
        out = self.folder / "chaos"
        done = subprocess.run(
            [ROOT / "scripts/chaos", "--kills", "3", "--lost-hosts", "0", "--frozen", "1", "--cuts", "0", "--hosts", "0",
             "--steps", "500", "--seed", "7", "--data", self.data, "--out", out],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "ANNULUS": helper.ANNULUS})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        trials = json.loads((out / "chaos.json").read_text())
        self.assertEqual([(trial["kind"], trial["moment"], trial["ranks"]) for trial in trials],
                         [("kill", "any", [0]), ("kill", "start", [2]), ("kill", "any", [2]), ("frozen", "any", [3])])
        self.assertEqual([trial["status"] for trial in trials if trial["moment"] == "any"], [0, 0, 0])

    def test_it_needs_shards(self):
        result = run(*self.training(self.folder / "out", survive=True))
        self.assertEqual(result.status, 2)
        self.assertRegex(result.messages[0], "--survive requires --shards")
        result = run(*self.training(self.folder / "out", min_ranks=2))
        self.assertRegex(result.messages[0], "--min-ranks and --lost-after belong to --survive")


if __name__ == "__main__":
    helper.main()
