"""Every error is reported in one line that names the cause, on any number of ranks, soon, and damages nothing."""
import os
import subprocess
import unittest

import h5py
import numpy as np

import helper
from helper import read_checkpoint, run

WORLDS = (0, 2)  # without mpirun, and two ranks


class ErrorTest(helper.ProgramTest):
    def fails(self, arguments, names, ranks, **options):
        self.assert_failed(run(*arguments, ranks=ranks, **options), names)

    def assert_failed(self, result, names):
        """It failed soon, with one line "annulus: ..." that matches the regular expression `names`."""
        self.assertGreater(result.status, 0, str(result))
        self.assertLess(result.status, 128, f"ended by a signal\n{result}")
        self.assertNotEqual(result.status, helper.STOPPED, str(result))
        self.assertLess(result.seconds, 20)
        self.assertEqual(len(result.messages), 1, str(result))
        self.assertRegex(result.messages[0], names)
        self.assertNotIn("MPI_ABORT was invoked", result.err)  # a page of the launcher, after the line
        for line in ("terminate called", "HDF5-DIAG", "AddressSanitizer"):
            self.assertNotIn(line, result.err)

    def training_fails(self, names, worlds=WORLDS, **options):
        self.all_fail((names, options), worlds=worlds)

    def all_fail(self, *cases, worlds=WORLDS):
        """Training fails with the options of each case, (names, options), in each world, all at once."""
        def train(number_and_run):
            number, (_, options, ranks) = number_and_run
            return run(*self.training(**{"out": self.folder / f"out-{number}", **options}), ranks=ranks)
        runs = enumerate((names, options, ranks) for names, options in cases for ranks in worlds)
        for (_, (names, options, ranks)), result in helper.at_once(train, runs):
            with self.subTest(ranks=ranks, **{name: str(value) for name, value in options.items()}):
                self.assert_failed(result, names)


class Errors(ErrorTest):
    def test_missing_data(self):
        self.training_fails(r"nowhere\.h5", data=self.folder / "nowhere.h5")

    def test_truncated_data(self):
        whole = self.data.read_bytes()
        cases = []
        for length in (0, 100, len(whole) // 2, len(whole) - 1000):
            broken = self.folder / f"{length}-broken.h5"
            broken.write_bytes(whole[:length])
            cases.append((r"broken\.h5", {"data": broken}))
        self.all_fail(*cases)

    def test_data_of_another_format(self):
        text = self.folder / "text.h5"
        text.write_text("not at all an HDF5 file\n" * 100)
        self.training_fails(r"text\.h5", data=text)
        other = self.folder / "other.h5"
        with h5py.File(other, "w") as file:
            file["something"] = np.zeros(3)
        self.training_fails(r"other\.h5", data=other)

    def test_labels_beyond_the_classes(self):
        data = helper.write_data(self.folder / "labels.h5")
        for label in (10, -1):
            with h5py.File(data, "a") as file:
                file["train/labels"][123] = label
            self.training_fails(r"labels\.h5", data=data)

    def test_fewer_labels_than_images(self):
        data = helper.write_data(self.folder / "fewer.h5")
        with h5py.File(data, "a") as file:
            labels = file["train/labels"][:-1]
            del file["train/labels"]
            file["train/labels"] = labels
        self.training_fails(r"fewer\.h5", data=data)

    def test_images_too_small_for_the_network(self):
        data = self.folder / "small.h5"
        with h5py.File(data, "w") as file:
            for split in ("train", "test"):
                file[f"{split}/images"] = np.zeros((60, 6, 6, 1), np.uint8)
                file[f"{split}/labels"] = np.zeros(60, np.int32)
            file.attrs["mean"] = file.attrs["deviation"] = np.float32([0.5])
            file.attrs["classes"] = ["a", "b"]
        self.training_fails(r"(?i)lenet|convolution|conv2|6x6|3x3", data=data, model="lenet")

    def test_out_under_a_file(self):
        file = self.folder / "file"
        file.write_text("in the way")
        self.training_fails(r"file/run|/file\b", out=file / "run")
        self.assertEqual(file.read_text(), "in the way")

    def test_invalid_options(self):
        bucket = r"--bucket: expected auto or a size of at least 4KiB"
        self.all_fail((r"squeezenet", {"model": "squeezenet"}), (r"pigeon", {"all_reduce": "pigeon"}),
                      (r"--bogus", {"bogus": 1}), (r"(?i)batch", {"batch": 0}), (r"(?i)batch|many", {"batch": "many"}),
                      *((bucket, {"bucket": size}) for size in ("1XB", "much", "4095", "-1", "tune")),
                      (r"(?i)lr", {"lr": "fast"}))
        for words in (["squeeze"], ["squeeze", "--help"], ["train", "squeeze", "--help"]):
            self.fails(words, "squeeze", 0)

    def test_unknown_command(self):
        for ranks in WORLDS:
            with self.subTest(ranks=ranks):
                self.fails(["trian"], r'^annulus: unknown command "trian"; did you mean train\? See annulus --help$',
                           ranks)
                self.fails(self.training(self.folder / "out", model="lennet"),
                           r'--model: .*not "lennet"; did you mean lenet\? See annulus train --help$', ranks)

    def test_a_group_of_commands_alone(self):
        """Its help, as of the program alone."""
        for words, usage in (([], "Usage: annulus COMMAND"), (["bench"], "Usage: annulus bench COMMAND")):
            result = run(*words)
            self.assertEqual(result.status, 2, str(result))
            self.assertIn(usage, result.out)
            self.assertEqual(result.err, "")

    def test_required_options(self):
        for ranks in WORLDS:
            with self.subTest(ranks=ranks):
                self.fails(["train", "--model", "mlp", "--out", self.folder / "out"], "--data", ranks)

    def test_more_ranks_than_images_in_a_step(self):
        self.training_fails(r"(?i)global.batch", worlds=(3,), global_batch=2)

    def test_configuration_file(self):
        unknown, broken = self.folder / "unknown.toml", self.folder / "broken.toml"
        unknown.write_text("bogus = 1\n")
        broken.write_text("= = [\n")
        self.all_fail((r"bogus", {"config": unknown}), (r"(?i)broken\.toml|pars", {"config": broken}),
                      (r"nowhere\.toml", {"config": self.folder / "nowhere.toml"}))

    def test_loss_that_is_not_a_number(self):
        self.training_fails(r"(?i)loss", lr=1e30, epochs=3)

    def test_a_slow_end(self):
        # mpirun waits a second before it ends other ranks, unless the first one's process ends earlier; here none does.
        lingering = [*helper.command([], 2)[:-1], "sh", "-c", '"$0" "$@"; sleep 5']
        self.fails(self.training(self.folder / "out", lr=1e30, epochs=3), r"annulus: step .* loss", 0, prefix=lingering)

    def test_a_rank_left_in_the_environment_by_another_launcher(self):
        """Only a job's first rank reports errors of the command line, but only if there is a job."""
        leftovers = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "PMI_RANK": "1", "SLURM_PROCID": "1"}
        job = {**leftovers, "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "7", "PMI_FD": "99", "SLURM_STEP_ID": "0",
               "PMIX_SERVER_TMPDIR": str(self.folder / "ended"), "SLURM_TASK_PID": "999999999"}
        for environment in (leftovers, job):
            self.fails(["trian"], "trian", 0, environment=environment)
            self.assertIn("train", self.succeed("--help", environment=environment).out)

    def test_eval_without_a_checkpoint(self):
        for ranks in WORLDS:
            with self.subTest(ranks=ranks):
                self.fails(["eval", "--data", self.data, "--checkpoint", self.folder / "none.h5"], r"none\.h5", ranks)

    def test_slurm_starts_every_rank_in_its_own_world(self):
        # srun without Open MPI's plug-in starts every rank in a world of its own: four runs would write to one folder.
        self.fails(self.training(self.folder / "out"), r"(?i)slurm|srun", 0, environment={"SLURM_STEP_NUM_TASKS": "4"})

    def test_another_launcher_starts_every_rank_in_its_own_world(self):
        """Each of two processes would train, evaluate or measure alone; doctor reports it, too."""
        mpiexec = {"PMI_RANK": "0", "PMI_SIZE": "2"}
        commands = (self.training(self.folder / "out"), ["bench", "all-reduce", "--seconds", "0.01"],
                    ["eval", "--data", self.data, "--checkpoint", self.folder], ["import", self.folder / "new.h5", self.folder])
        for command in commands:
            self.fails(command, r"mpiexec .* one of 2 \(PMI_SIZE=2\).*\(Open MPI .*: start it with mpirun -np 2; .*env -u PMI_SIZE",
                       0, environment=mpiexec)
        self.assertFalse((self.folder / "out").exists())
        self.assertIn("one of 2 (PMI_SIZE=2)", self.succeed("doctor", environment=mpiexec).out)
        result = run(*commands[0], environment={"RANK": "1", "WORLD_SIZE": "2"})
        self.assert_failed(result, r"annulus: rank 1: torchrun .* one of 2 \(WORLD_SIZE=2\)")
        self.assertGreater(result.seconds, 2)  # the launcher has ended it, if the first rank's error suffices

    def test_a_single_process_in_an_allocation(self):
        """The shells of salloc -n 4 and of a PBS job."""
        for number, environment in enumerate(({"SLURM_NTASKS": "4"}, {"PBS_NP": "4", "PBS_TASKNUM": "1"})):
            out = self.folder / str(number)
            result = self.succeed(*self.training(out, max_steps=2), environment=environment)
            self.assertEqual("Slurm's allocation has 4 tasks" in result.out, number == 0, str(result))
            self.succeed("eval", "--data", self.data, "--checkpoint", out, environment=environment)


class OldCheckpoint(ErrorTest):
    """Errors in a run with an existing checkpoint."""

    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"
        self.train(self.out, ranks=2, max_steps=3)
        self.checkpoint = self.out / "checkpoint.h5"

    def spared(self, names, **options):
        before = self.checkpoint.read_bytes()
        for ranks in WORLDS:
            with self.subTest(ranks=ranks):
                self.fails(self.training(**{"out": self.out, "resume": True, **options}), names, ranks)
        self.assertEqual(before, self.checkpoint.read_bytes(), "the old checkpoint was touched")

    def test_truncated(self):
        whole = self.checkpoint.read_bytes()
        for length in (0, 100, len(whole) // 2, len(whole) - 100):
            self.checkpoint.write_bytes(whole[:length])
            self.spared(r"step-000000003\.h5")

    def test_damaged(self):
        def rename(file): file.attrs["format"] = "something else"
        def from_the_future(file): file.attrs["version"] = 1000
        def without_a_parameter(file): del file["parameters"][next(iter(file["parameters"]))]

        whole = self.checkpoint.read_bytes()
        for damage in (rename, from_the_future, without_a_parameter):
            with self.subTest(damage.__name__):
                self.checkpoint.write_bytes(whole)
                with h5py.File(self.checkpoint, "a") as file:
                    damage(file)
                self.spared(r"step-000000003\.h5")

    def test_a_run_without_resume(self):
        self.spared(r"out.*--resume", resume=None)

    def test_of_another_seed(self):
        self.spared(r"--seed", seed=8)

    def test_of_another_model(self):
        self.spared(r"(?i)mlp", model="lenet")

    def test_loss_that_is_not_a_number(self):
        self.spared(r"(?i)loss", lr=1e30, epochs=3)

    def test_unknown_option(self):
        self.spared(r"--bogus", bogus=1)

    def test_full_disk(self):
        disk = self.folder / "disk"
        disk.mkdir()
        size = int(1.6 * self.checkpoint.stat().st_size)  # room for one checkpoint, not for two
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            raise unittest.SkipTest("a full disk is not tried: may not mount a small one here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)])
        self.out = disk / "run"
        self.train(self.out, ranks=2, max_steps=3)
        self.checkpoint = self.out / "checkpoint.h5"
        files = sorted(self.out.rglob("*"))
        for every in ("end", 2):  # files written at the end, and during training
            # While the checkpoint is written, the results of what comes with it are written too.
            self.spared(r"(step-\d+\.h5|results\.json).*(?i:space|disk)", max_steps=60, epochs=9, checkpoint_every=every,
                        eval_every="end")
            self.assertEqual(files, sorted(self.out.rglob("*")), "a half-written file was left behind")
        self.assertEqual(read_checkpoint(self.checkpoint)["attributes"]["step"], 3)


if __name__ == "__main__":
    helper.main()
