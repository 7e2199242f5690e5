"""With --survive, a run goes on when ranks die, and with --shards it ends with the same bits."""
import json
import os
import pathlib
import signal
import subprocess
import time

import h5py

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
        self.assertEqual(result.messages, ["annulus: the job survives lost ranks",
                                           f"annulus: the job ends with status 0, ranks lost: {len(lost)}"], str(result))
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
            self.assertEqual(record["recovery_seconds"], loss["seconds"])
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

    def test_ranks_die_before_the_first_step(self):
        """The others start the run anew, without another job."""
        def train(case):
            number, deaths = case
            faults = [word for rank, stage in deaths.items() for word in ("--inject", f"kill:rank={rank},step=0,at={stage}")]
            out = self.folder / str(number)
            return out, run(*self.training(out, survive=True, **RUN), *faults, ranks=4, environment=RECOVERY)
        for (_, deaths), (out, result) in helper.at_once(train, enumerate((
                {1: "compared"}, {0: "claimed"}, {3: "planned"}, {0: "claimed", 1: "claimed"}, {2: "claimed", 0: "planned"},
                {0: "compared", 1: "claimed", 2: "planned"}))):
            with self.subTest(deaths=deaths):
                self.assert_went_on(out, result, dict.fromkeys(deaths))

    def test_too_few_ranks_before_the_first_step(self):
        out = self.folder / "out"
        result = finish(self.start_run(out, ranks=3, min_ranks=3, inject="kill:rank=1,step=0,at=claimed"))
        self.assertEqual(result.messages[1:], ["annulus: the job ends with status 75, ranks lost: 1"], str(result))
        self.assertRegex(result.out, r"(?m)^rank 1 on .* was lost before the first step: "
                                     r"fewer ranks than --min-ranks 3 are left$")
        self.train(out, ranks=2, **RUN)
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_muon(self):
        options = {"optimizer": "muon", "lr": 0.005, "muon_lr": 0.01}
        self.undisturbed = self.folder / "undisturbed"
        self.train(self.undisturbed, **RUN, **options)
        for ranks, rank in (4, 0), (3, 2):
            with self.subTest(ranks=ranks):
                out = self.folder / str(ranks)
                process = self.start_run(out, ranks=ranks, inject=f"kill:rank={rank},step=12", **options)
                self.assert_went_on(out, finish(process), {rank: 12})

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

    def test_ranks_in_pid_namespaces_of_their_own(self):
        """Process numbers of other ranks, here even equal ones, name other processes: none may be signalled."""
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("unshare cannot make PID namespaces here")
        out, ranks = self.folder / "out", self.folder / "rank"
        # Ranks have the same number in each namespace, or that of a bystander.
        ranks.write_text(f"""#!/bin/sh
            exec {' '.join(unshare)} sh -c '
              [ "$OMPI_COMM_WORLD_RANK" = 1 ] || sleep 1000 &
              sleep 1000 & bystander=$!
              "$@" & rank=$!
              wait $rank; status=$?
              kill $bystander && echo "bystander of $OMPI_COMM_WORLD_RANK lived" >&2
              exit $status' sh "$@"\n""")
        ranks.chmod(0o755)
        arguments = self.training(out, survive=True, lost_after=1, inject="kill:rank=1,step=12", **RUN)
        process = subprocess.Popen(
            [helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3", ranks, helper.ANNULUS,
             *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **helper.ENVIRONMENT, **RECOVERY, "OMPI_MCA_btl": "self,tcp"},  # vader mixes up equal numbers
            start_new_session=True)
        result = finish(process)
        self.assert_went_on(out, result, {1: 12})
        for rank in range(3):
            self.assertIn(f"bystander of {rank} lived", result.err)

    def test_too_few_ranks_stop_with_a_checkpoint(self):
        out = self.folder / "out"
        process = self.start_run(out, ranks=3, min_ranks=3, inject="kill:rank=2,step=12", quiet=True)
        result = finish(process)
        self.assertEqual(result.messages[1:], ["annulus: the job ends with status 75, ranks lost: 1"], str(result))
        self.assertRegex(result.out, r"(?m)^rank 2 on .* was lost in step .*\nfewer ranks than --min-ranks 3\nstopped after .*\n$")
        stopped = helper.read_checkpoint(out / "checkpoint.h5")["attributes"]["step"]
        self.assertIn(stopped, (12, 13))
        self.succeed(*self.training(out, resume=True, **RUN), ranks=2)
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_a_rank_is_excluded_by_hand(self):
        out = self.folder / "out"
        process = self.start_run(out, ranks=3, epochs=1000000)
        self.await_checkpoint(process, out)
        refused = run("control", out, "exclude", 3)
        self.assertEqual((refused.status, refused.messages), (1, [f"annulus: {out}: there is no rank 3"]))
        self.assertEqual(self.succeed("control", out, "exclude", 2).out, "the run goes on without rank 2\n")
        process.send_signal(signal.SIGUSR1)  # mpirun passes it on
        result = finish(process)
        self.assertEqual(result.messages[1:], ["annulus: the job ends with status 75, ranks lost: 1"], str(result))
        loss, = json.loads((out / "results.json").read_text())["losses"]
        self.assertEqual((loss["rank"], loss["excluded"]), (2, True))
        self.assertEqual((result.out.count(" was excluded in step "), result.out.count("was lost")), (1, 0), result.out)
        step = helper.read_checkpoint(out / "checkpoint.h5")["attributes"]["step"]
        undisturbed = self.folder / "undisturbed"
        self.train(undisturbed, **{**RUN, "epochs": 1000000, "max_steps": step})
        self.assert_same_state(out / "checkpoint.h5", undisturbed / "checkpoint.h5")
        self.assertRegex(run("control", out, "exclude", 0).err, "no run is writing to this folder")

    def test_a_run_that_ends_without_an_answer(self):
        out = self.folder / "out"
        process = start(*self.training(out, **{**RUN, "epochs": 1000000}))  # without --survive it never answers
        self.await_checkpoint(process, out)
        request = start("control", out, "exclude", 0)
        self.await_file(request, out / "control.json")
        process.kill()
        finish(process)
        result = finish(request, 10)
        self.assertEqual((result.status, result.messages), (1, [f"annulus: {out}: the run ended without an answer"]))
        self.assertFalse((out / "control.json").exists())

    def test_bad_samples_of_a_lost_rank_are_counted(self):
        data, out = helper.write_data(self.folder / "bad.h5"), self.folder / "out"
        with h5py.File(data, "r+") as file:
            file["train/labels"][::7] = 99
        result = finish(self.start_run(out, data=data, on_bad_sample="skip", inject="kill:rank=2,step=17"))
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 1", str(result))
        results = json.loads((out / "results.json").read_text())
        self.assertEqual([epoch["skipped"] for epoch in results["epochs"]], [72, 72, 72])

    def test_a_request_to_an_earlier_run(self):
        """Its `annulus control` was killed before the run answered."""
        out = self.folder / "out"
        self.train(out, **{**RUN, "epochs": 1})
        (out / "control.json").write_text('{"exclude": 1}')
        result = finish(self.start_run(out, ranks=3, resume=True))
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 0", str(result))
        self.assertFalse((out / "control.json").exists())

    def test_the_best_is_exported(self):
        out, file, expected = self.folder / "out", self.folder / "best.onnx", self.folder / "expected.onnx"
        process = self.start_run(out, ranks=3, inject="kill:rank=0,step=12", export_best=file)
        self.assert_went_on(out, finish(process), {0: 12})
        self.succeed("export", expected, "--checkpoint", self.undisturbed / "best.h5")
        self.assertEqual(file.read_bytes(), expected.read_bytes())

    def test_errors_still_end_all_ranks(self):
        out = self.folder / "out"
        result = finish(self.start_run(out, ranks=3, lr=1e30, lost_after=5), 20)
        self.assertLess(result.seconds, 10)  # it is not taken for a loss, which would be waited for
        _, *errors, status = result.messages
        self.assertTrue(errors and all("training has diverged" in line for line in errors), str(result))
        self.assertEqual(status, "annulus: the job ends with status 1, ranks lost: 0")

    def test_every_end_reports_a_status(self):
        def end(case):
            ranks, options, status = case
            return finish(self.start_run(self.folder / f"{ranks}-{status}", ranks=ranks, **options))
        for (ranks, options, status), result in helper.at_once(end, (
                (1, {"max_steps": 2}, 0), (2, {"max_steps": 2}, 0), (2, {"data": "none.h5"}, 1),
                (2, {"no_such_option": 1}, 2))):
            with self.subTest(ranks=ranks, options=options):
                self.assertEqual(result.messages[-1], f"annulus: the job ends with status {status}, ranks lost: 0", str(result))

    def launch(self, out, *launch_options, program=(), **options):
        """Three ranks under scripts/launch, started by `program`. Returns the result and launch's own lines."""
        result = run(*self.training(out, survive=True, **{**RUN, **options}),
                     prefix=[ROOT / "scripts/launch", "-np", "3", *launch_options, *program])
        return result, [line for line in result.err.splitlines() if line.startswith("launch:")]

    def test_further_options_of_mpirun(self):
        out = self.folder / "out"
        result, lines = self.launch(out, "--", "--bind-to", "none", max_steps=4)
        self.assertEqual((result.status, lines), (0, []), str(result))
        self.assertIn("--bind-to none", result.err)

    def test_a_rank_ends_before_the_others_can_survive_it(self):
        """The others wait for it in MPI_Init: launch starts the job again, by itself if the rank was killed."""
        def launch(case):
            end, how, _ = case
            folder = self.folder / end
            folder.mkdir()
            ranks = folder / "ranks"
            ranks.write_text(f"""#!/bin/sh
                [ "$OMPI_COMM_WORLD_RANK" != 1 ] || ! mkdir '{folder}/ended' 2> /dev/null || {end}
                exec "$@"\n""")
            ranks.chmod(0o755)
            return self.launch(folder / "out", *(["--restarts", "1"] if how == "ended" else []), program=[ranks])
        for (end, how, status), (result, lines) in helper.at_once(launch, (
                ("kill -9 $$", "was lost", 75), ("exit 127", "ended", 1), ("exit 0", "ended", 1))):
            with self.subTest(end=end):
                self.assertEqual(result.status, 0, str(result))
                self.assertEqual(lines, [
                    f"launch: rank 1 {how} before the job could survive this: the job ends",
                    f"launch: 1 of 3 ranks were lost, and the job ended with status {status}: starting it again"])
                self.assert_same_state(self.folder / end / "out/checkpoint.h5", self.undisturbed / "checkpoint.h5")

    def test_a_job_that_reports_an_error_is_not_started_again(self):
        def launch(case):
            options, status = case
            return self.launch(self.folder / str(status), "--restarts", "1", **options)
        for (options, status), (result, lines) in helper.at_once(launch, (
                ({"data": "none.h5"}, 1), ({"no_such_option": 1}, 2), ({"help": True}, 0))):
            with self.subTest(options=options):
                self.assertEqual((result.status, lines), (status, []), str(result))

    def test_ranks_of_a_killed_mpirun_are_ended(self):
        """By themselves they go on for a second; launch knows them by their job's number."""
        out = self.folder / "out"
        process = start(*self.training(out, survive=True, **{**RUN, "epochs": 1000000, "stall_timeout": 60}),
                        prefix=[ROOT / "scripts/launch", "-np", "3"])
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        while process.poll() is None and not any(out.glob("metrics.jsonl")):
            time.sleep(0.05)
        ranks = {}
        for child in helper.children(process.pid):
            if found := rank_processes(child):
                mpirun, ranks = child, found
        self.assertEqual(sorted(ranks), [0, 1, 2])
        os.kill(mpirun, signal.SIGKILL)
        result = finish(process)
        self.assertEqual((result.status, result.err.splitlines()[-1]),
                         (helper.STOPPED, "launch: mpirun was killed (signal 9): the job ends"), str(result))
        self.assertLess(result.seconds, 10)
        time.sleep(0.3)  # in which the kernel frees their memory
        self.assertEqual([rank for rank, number in ranks.items() if helper.is_running(number)], [])

    def test_it_needs_a_launcher_that_goes_on(self):
        """mpirun alone ended a complete run with status 1 and without a line."""
        result = run(*self.training(self.folder / "out", survive=True, **RUN), ranks=2)
        self.assertEqual((result.status, result.messages), (1, [
            "annulus: --survive needs a launcher that does not end the job when a rank dies: scripts/launch or mpirun "
            "--enable-recovery"]), str(result))

    def test_it_needs_shards_or_rounds(self):
        for strategy, message in (("synchronous", "--survive without --shards, .*: add --shards N, or use --strategy local or async"),
                                  ("sharded", "--survive, because it requires --shards, which does not go with this, either: remove it, or use --strategy synchronous,")):
            result = run(*self.training(self.folder / "out", survive=True, strategy=strategy))
            self.assertEqual(result.status, 2)
            self.assertRegex(result.messages[0], message)
        result = run(*self.training(self.folder / "out", survive=True, strategy="async", all_reduce="ring"))
        self.assertRegex(result.messages[0], "--survive does not go with --all-reduce, .*: remove --all-reduce")
        result = run(*self.training(self.folder / "out", min_ranks=2))
        self.assertRegex(result.messages[0], "--min-ranks and --lost-after belong to --survive")


class SurviveInRounds(helper.ProgramTest):
    """Ranks of an asynchronous run, or of one with local steps, die, and the others go on from a common step."""
    ASYNC = {"strategy": "async", "sync_every": 4, "global_batch": 30, "epochs": 2, "eval_steps": 1, "metrics_every": 1}
    EPOCH = 17  # steps: 500 images

    def arguments(self, out, faults=(), **options):
        injected = [word for fault in faults for word in ("--inject", fault)]
        return [*self.training(out, survive=True, **{**self.ASYNC, **options}), *injected]

    def finish_run(self, out, ranks, deaths, **options):
        """Ranks die before a step, which those that only serve reach at the beginning of rounds. Returns results.json."""
        faults = [f"kill:rank={rank},step={step}" for rank, step in deaths.items()]
        result = run(*self.arguments(out, faults, **options), ranks=ranks, environment=RECOVERY)
        self.assertEqual(result.messages, ["annulus: the job survives lost ranks",
                                           f"annulus: the job ends with status 0, ranks lost: {len(deaths)}"], str(result))
        results = json.loads((out / "results.json").read_text())
        self.assertEqual(results["status"], "complete")
        self.assertEqual(sorted(loss["rank"] for loss in results["losses"]), sorted(deaths))
        return results

    def assert_each_step_once(self, out, results):
        self.assertEqual([epoch["epoch"] for epoch in results["epochs"]], [1, 2])
        steps = [record["step"] for record in helper.metrics(out) if record["kind"] == "train"]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1], sum(epoch["steps"] for epoch in results["epochs"]))
        lost = [(record["lost_rank"], record["step"]) for record in helper.metrics(out) if record["kind"] == "lost"]
        self.assertEqual(lost, [(loss["rank"], loss["step"]) for loss in results["losses"]])
        losses = [epoch["train_loss"] for epoch in results["epochs"]]
        self.assertLess(losses[1], 0.8 * losses[0])

    def test_workers_and_servers_die(self):
        def run_on(case):
            number, (ranks, deaths, options) = case
            return self.finish_run(self.folder / str(number), ranks, deaths, **options)
        for (number, (ranks, deaths, options)), results in helper.at_once(run_on, enumerate((
                (2, {0: 7}, {}), (2, {1: 20}, {}), (3, {1: 7}, {"model": "resnet20"}), (4, {2: 6, 0: 8, 1: 26}, {}),
                (3, {0: 7}, {"servers": 1}), (3, {2: 9}, {"servers": 1}),  # a worker, and the only server
                (4, {3: 5, 1: 22}, {"servers": 2}), (2, {0: 7}, {"servers": 1}), (3, {0: 3}, {"sync_every": "0.05s"}),
                (3, {1: 7, 0: 19}, {"strategy": "local"}),
                (3, {0: 7}, {"strategy": "local", "outer": "nesterov", "model": "resnet20"})))):
            with self.subTest(ranks=ranks, deaths=deaths, **options):
                self.assert_each_step_once(self.folder / str(number), results)
                if "sync_every" not in options:
                    self.assertEqual([epoch["steps"] for epoch in results["epochs"]], [self.EPOCH, self.EPOCH])

    def test_nothing_is_lost_with_a_rank(self):
        """The run has the bits of one that was stopped after the common step and resumed on the ranks that were left."""
        adamw = {"optimizer": "adamw", "lr": 0.001, "ema": 0.9}
        for name, ranks, lost, options in (("owner", 3, 1, {"model": "resnet20", **adamw}), ("first", 2, 0, {"model": "lenet"}),
                                           ("server", 3, 2, {"servers": 1, **adamw}),
                                           ("local", 3, 1, {"strategy": "local", "outer": "nesterov", "optimizer": "sgd,momentum=0"})):
            with self.subTest(name):
                options = {"staleness": 0 if name != "local" else None, **options}
                out, parts = self.folder / name, self.folder / f"{name}-parts"
                loss, = self.finish_run(out, ranks, {lost: 22}, **options)["losses"]
                for on, steps in ((ranks, loss["step"]), (ranks - 1, 2 * self.EPOCH)):
                    self.train(parts, ranks=on, survive=True, environment=RECOVERY, resume=True,
                               **{**self.ASYNC, **options, "max_steps": steps})
                self.assert_same_state(out / "checkpoint.h5", parts / "checkpoint.h5")

    def test_a_worker_dies_and_the_others_complete_the_round(self):
        """Owners do not need it. Another rank than 0 then writes the round's record.

        A worker comes to the seventh step of a round only when all ranks have begun it: before, they may begin it again."""
        for number, (ranks, deaths, servers) in enumerate(((4, {1: 7}, 2), (3, {1: 15}, 1), (4, {1: 7, 2: 8}, 1), (4, {0: 7}, 2))):
            with self.subTest(ranks=ranks, deaths=deaths, servers=servers):
                out = self.folder / str(number)
                results = self.finish_run(out, ranks, deaths, servers=servers, sync_every=8)
                self.assert_each_step_once(out, results)
                self.assertEqual([epoch["steps"] for epoch in results["epochs"]], [self.EPOCH, self.EPOCH])
                for loss in results["losses"]:
                    self.assertEqual((loss["step"], loss["repeated_steps"]), ((deaths[loss["rank"]] + 7) // 8 * 8, 0))

    def test_the_writer_of_checkpoints_dies(self):
        out = self.folder / "out"
        result = run(*self.arguments(out, ["kill:rank=0,step=8,at=renamed"], checkpoint_every=4), ranks=3, environment=RECOVERY)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 1", str(result))
        self.assert_each_step_once(out, json.loads((out / "results.json").read_text()))

    def test_a_rank_is_excluded_by_hand_and_the_run_is_stopped(self):
        out = self.folder / "out"
        process = start(*self.arguments(out, epochs=1000000, checkpoint_every=8, min_ranks=2), ranks=3, environment=RECOVERY)
        self.await_checkpoint(process, out)
        self.assertEqual(self.succeed("control", out, "exclude", 2).out, "the run goes on without rank 2\n")
        self.assertEqual(self.succeed("control", out, "exclude", 0).out, "the run goes on without rank 0\n")
        result = finish(process)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 75, ranks lost: 2", str(result))
        self.assertIn("fewer ranks than --min-ranks 2", result.out)
        step = int(helper.read_checkpoint(out / "checkpoint.h5")["attributes"]["step"])
        self.succeed(*self.training(out, resume=True, **{**self.ASYNC, "epochs": 1000000, "max_steps": step + 4}), ranks=2)

    def test_a_frozen_rank_is_given_up(self):
        out = self.folder / "out"
        process = start(*self.arguments(out, ["delay:rank=0,seconds=0.03"], lost_after=1, checkpoint_every=4), ranks=3,
                        environment=RECOVERY)
        self.await_checkpoint(process, out)
        os.kill(rank_processes(process.pid)[1], signal.SIGSTOP)
        result = finish(process)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 1", str(result))
        self.assert_each_step_once(out, json.loads((out / "results.json").read_text()))

    def test_new_ranks_come(self):
        """A job on more ranks takes the run over; scripts/launch starts a job again that has lost too many."""
        out = self.folder / "out"
        earlier = start(*self.arguments(out, ["delay:rank=1,seconds=0.03"], checkpoint_every=8, epochs=4), ranks=2,
                        environment=RECOVERY)
        self.await_checkpoint(earlier, out)
        later = start(*self.arguments(out, resume=True, take_over=True, epochs=4), ranks=3, environment=RECOVERY)
        result = finish(earlier)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 76, ranks lost: 0", str(result))
        result = finish(later)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 0", str(result))
        out = self.folder / "launched"
        result = run(*self.arguments(out, ["kill:rank=1,step=3"], min_ranks=3), timeout=90,
                     prefix=[ROOT / "scripts/launch", "-np", "3", "--restarts", "1"])
        self.assertEqual(result.status, 0, str(result))
        results = json.loads((out / "results.json").read_text())
        self.assertEqual((results["status"], results["ranks"]), ("complete", 3))
        steps = [record["step"] for record in helper.metrics(out) if record["kind"] == "train"]
        self.assertEqual((steps, steps[-1]), (sorted(set(steps)), 2 * self.EPOCH))


if __name__ == "__main__":
    helper.main()
