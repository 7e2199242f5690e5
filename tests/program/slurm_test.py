"""scripts/slurm/train.sbatch under a real Slurm with several nodes, all on this machine."""
import json
import os
import shutil
import subprocess
import time
import unittest

import batch_test
import helper
from batch_test import ROOT, environment, newest
from helper import read_checkpoint
from hosts_test import HOSTS

# The nodes share this machine's cores, so waiting ranks must yield; commands run as root.
ENVIRONMENT = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_mpi_yield_when_idle": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none"}


class SlurmTest(batch_test.BatchTest):
    """Jobs are submitted in the class's folder, and leave their logs there."""
    nodes = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
        if os.geteuid() != 0:
            missing.append("root's rights")
        if missing:
            raise unittest.SkipTest(f"Slurm is not tried: that wants {', '.join(missing)}")
        cls.lab = cls.shared / "hosts"
        cls.addClassCleanup(subprocess.run, [HOSTS, cls.lab, "down"])
        hosts = subprocess.run([HOSTS, cls.lab, "up", str(cls.nodes), "10gbit", "1mb"], capture_output=True, text=True)
        if hosts.returncode != 0:
            raise unittest.SkipTest(f"Slurm is not tried, nor are several hosts: {hosts.stderr.strip()}")
        subprocess.run([ROOT / "tests/slurm/slurm", cls.lab, str(cls.nodes)], check=True)

    @classmethod
    def slurm(cls, *arguments, **variables):
        """Runs a Slurm command on the first node. Returns its output."""
        return subprocess.run(
            [HOSTS, cls.lab, "exec", "h1", *map(str, arguments)], check=True, cwd=cls.shared, text=True, timeout=30,
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env=environment(**ENVIRONMENT, SLURM_CONF=cls.lab / "slurm/slurm.conf", **variables)).stdout

    @classmethod
    def submit(cls, *arguments, options=(), script=ROOT / "scripts/slurm/train.sbatch", **variables):
        """A job of 2 ranks, one on each node, unless sbatch's `options` differ."""
        return cls.slurm("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", *options,
                         script, *arguments, **variables).strip()

    @classmethod
    def log(cls, job):
        path = cls.shared / f"annulus-{job}.log"
        return path.read_text() if path.exists() else "no log"

    @classmethod
    def facts(cls, job):
        words = cls.slurm("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    @classmethod
    def await_that(cls, job, is_so, what, seconds=40):
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what}: {cls.facts(job)}\n{cls.log(job)}")
            time.sleep(0.1)

    @classmethod
    def await_job(cls, job, seconds=40, **wanted):
        """Waits until Slurm reports this for the job, such as JobState="RUNNING"."""
        cls.await_that(job, lambda: wanted.items() <= cls.facts(job).items(), wanted, seconds)

    @classmethod
    def await_checkpoint_of(cls, job, out):
        cls.await_that(job, lambda: list(out.rglob("*.h5")), "with a checkpoint")


class Slurm(SlurmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_long_jobs()

    @classmethod
    def start_long_jobs(cls):
        """Two minutes; Slurm warns after 60 to 90 seconds, because it checks twice a minute. Other tests run
        meanwhile."""
        cls.long = {}
        for launcher in ("srun", "mpirun"):
            config = cls.write_config(cls.shared / f"{launcher}.toml", cls.shared / launcher)
            cls.long[launcher] = cls.submit("--config", config, LAUNCHER=launcher, options=[
                "--partition=closing", "--time=2", "--signal=B:USR1@60"])
        for launcher, job in cls.long.items():
            cls.await_checkpoint_of(job, cls.shared / launcher)
        # They must not start again before --max-steps is set.
        cls.slurm("scontrol", "update", "partition=closing", "state=down")

    def test_training_continues_beyond_the_time_limit(self):
        steps = {}
        for launcher, job in self.long.items():
            self.await_job(job, 130, JobState="PENDING", Restarts="1")
            out = self.shared / launcher
            steps[launcher] = int(read_checkpoint(newest(out))["attributes"]["step"]) + 3
            self.write_config(self.shared / f"{launcher}.toml", out, max_steps=steps[launcher])
        self.slurm("scontrol", "update", "partition=closing", "state=up")
        for launcher, job in self.long.items():
            with self.subTest(launcher):
                self.await_job(job, JobState="COMPLETED", Restarts="1", ExitCode="0:0")
                self.assertIn(", as requested", self.log(job))  # both runs are in one log
                self.assert_went_on(self.shared / launcher, self.folder / launcher, 2, steps[launcher])

    def test_a_cancelled_job_has_a_checkpoint_and_stays_cancelled(self):
        jobs = {}
        for launcher in ("srun", "mpirun"):
            config = self.write_config(self.folder / f"{launcher}.toml", self.folder / launcher)
            jobs[launcher] = self.submit("--config", config, LAUNCHER=launcher)
        for launcher, job in jobs.items():
            with self.subTest(launcher):
                self.await_checkpoint_of(job, self.folder / launcher)
                self.slurm("scancel", job)
                self.await_job(job, JobState="CANCELLED", Restarts="0")
                self.assertIn(", as requested", self.log(job))  # within Slurm's grace time, with a checkpoint

    def test_a_preempted_job_continues_in_the_next(self):
        """As with preemption."""
        out = self.folder / "out"
        job = self.submit("--config", self.write_config(self.folder / "run.toml", out))
        self.await_checkpoint_of(job, out)
        self.slurm("scancel", "--signal=TERM", job)
        self.await_job(job, Restarts="1")
        self.slurm("scancel", job)

    def test_a_killed_rank_ends_the_job_without_a_requeue(self):
        config = self.write_config(self.folder / "run.toml", self.folder / "out")
        job = self.submit("--config", config, "--inject", "kill:rank=1,step=20")
        self.await_job(job, JobState="FAILED", Restarts="0", ExitCode="137:0")

    def test_a_crash_at_the_start_is_tried_again(self):
        """As MPI_Init may crash, by Slurm's fault."""
        for starts, state, status in ((2, "COMPLETED", "0:0"), (3, "FAILED", "139:0")):
            with self.subTest(starts=starts):
                crash = self.stand_in("crash", f'touch {self.folder}/{starts}-$SLURM_STEP_ID; '
                                      f'[ {starts} = 2 ] && [ -e {self.folder}/2-1 ] || kill -SEGV $$')
                job = self.submit(ANNULUS=crash, options=["--nodes=1"])
                self.await_job(job, JobState=state, ExitCode=status)
                self.assertEqual(len(list(self.folder.glob(f"{starts}-*"))), starts)
                self.assertIn("train.sbatch: a rank crashed at the start; starting again\n", self.log(job))

    def test_every_rank_sees_the_gpus_of_its_node(self):
        show = self.stand_in("show", 'echo "$SLURMD_NODENAME $SLURM_LOCALID: $CUDA_VISIBLE_DEVICES"')
        job = self.submit(ANNULUS=show, options=["--gpus-per-node=2", "--ntasks-per-node=2", "--cpus-per-task=2"])
        self.await_job(job, JobState="COMPLETED")
        seen = sorted(line for line in self.log(job).splitlines() if not line.startswith("srun:"))
        self.assertEqual(seen, [f"{node} {rank}: 0,1" for node in ("h1", "h2") for rank in (0, 1)])

    def test_ranks_see_all_gpus_by_a_mask(self):
        show = self.stand_in("apptainer", 'echo "$SLURMD_NODENAME $SLURM_LOCALID: $CUDA_VISIBLE_DEVICES $1 $2 $3"')
        job = self.submit(ANNULUS=f"{show} run --nv annulus.sif", options=[
            "--nodes=1", "--nodelist=h1", "--gpus-per-node=2", "--ntasks-per-node=2", "--gpu-bind=mask_gpu:0x3"])
        self.await_job(job, JobState="COMPLETED")
        seen = sorted(line for line in self.log(job).splitlines() if not line.startswith("srun:"))
        self.assertEqual(seen, [f"h1 {rank}: 0,1 run --nv annulus.sif" for rank in (0, 1)])

    def test_our_error_comes_last(self):
        for launcher in ("srun", "mpirun"):
            job = self.submit("--bacth", 3, LAUNCHER=launcher)
            self.await_job(job, JobState="FAILED", ExitCode="2:0")
            self.assertRegex(self.log(job), r"annulus: unknown option --bacth; .*\n$")

    def test_a_heterogeneous_job_continues(self):
        """A group of two ranks on the one node, and a group of one rank on the other."""
        out = self.folder / "unequal"
        config = self.write_config(self.folder / "run.toml", out)
        job = self.submit("--config", config, options=[
            "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", ":", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=2"])
        self.await_checkpoint_of(job, out)
        self.assertIn(" on 3 ranks, ", self.log(job))
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.await_job(job, Restarts="1")  # it starts when the backfill scheduler finds time
        self.slurm("scancel", job)
        stopped = self.submit(options=["--nodes=1", ":", "--nodes=1"], LAUNCHER="mpirun")
        self.await_job(stopped, JobState="FAILED", ExitCode="2:0")
        self.assertEqual(self.log(stopped), "train.sbatch: heterogeneous jobs need srun, and no --survive\n")

    def test_a_job_from_another_folder_finds_the_program(self):
        root = self.folder / "my repository"
        (root / "build").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", root / "scripts")
        script = root / "scripts/slurm/train.sbatch"
        self.stand_in("show", 'echo "$0 $*"').rename(root / "build/annulus")
        job = self.submit("--out", "scripts/slurm/train.sbatch run", script=script, ANNULUS="", ANNULUS_ROOT="",
                          options=["--nodes=1"])
        self.await_job(job, JobState="COMPLETED")
        self.assertIn(f"{root}/build/annulus train --out scripts/slurm/train.sbatch run --resume\n", self.log(job))
        copy = self.folder / "train.sbatch"
        shutil.copy(script, copy)
        job = self.submit("--out", "run", script=copy, ANNULUS="", ANNULUS_ROOT="", options=["--nodes=1"])
        self.await_job(job, JobState="FAILED", ExitCode="2:0")
        self.assertEqual(self.log(job), "train.sbatch: no annulus: set ANNULUS_ROOT to the repository\n")

    def test_jobs_of_an_array_have_folders_of_their_own(self):
        config = self.write_config(self.folder / "run.toml", self.folder / "unused", max_steps=2)
        job = self.submit("--config", config, "--seed", "%a", "--out", self.folder / "run-%a",
                          options=["--array=3,5", "--ntasks-per-node=1", "--nodes=1", f"--output={self.folder}/log-%a"])
        for number in (3, 5):
            out = self.folder / f"run-{number}"
            self.await_that(f"{job}_{number}", lambda: (out / "results.json").exists() and
                            json.loads((out / "results.json").read_text())["status"] == "complete", "complete")
            self.assertIn(f"seed={number}\n", (out / "config.toml").read_text())


class LostNodes(SlurmTest):
    """A node loses power under jobs of two nodes. Slurm does not notice that by itself within the time of a test."""
    nodes = 3
    NOTICED = 90  # seconds; the scripts wait up to 60 for a node's answer
    RUN = {"shards": 4, "global_batch": 40, "checkpoint_every": 5, "all_reduce": None}

    def submit_run(self, name, *arguments, max_steps=None, options=(), **variables):
        """A slow run, which writes to the folder of its name."""
        self.configs[name] = self.write_config(self.folder / f"{name}.toml", self.folder / name, max_steps=max_steps,
                                               **self.RUN)
        self.jobs[name] = self.submit("--config", self.configs[name], "--inject", "delay:rank=0,seconds=0.05", *arguments,
                                      options=options, **variables)

    def assert_same_as_undisturbed(self, name, steps):
        whole = self.folder / f"undisturbed-{name}"
        self.train(whole, **{**self.RUN, "epochs": 1000000, "max_steps": steps})
        self.succeed("checkpoint", "diff", newest(whole), newest(self.folder / name))

    def test_jobs_continue(self):
        self.configs, self.jobs = {}, {}
        survive = ["--survive", "--lost-after", 5]
        self.submit_run("goes on", *survive, max_steps=500, options=["--no-kill", "--nodelist=h1,h2"])
        self.submit_run("too few", *survive, "--min-ranks", 2, options=["--no-kill"])
        self.submit_run("plain", LAUNCHER="mpirun")  # notices the loss sooner than srun
        self.submit_run("first node", *survive, options=["--no-kill", "--nodelist=h2,h3"])
        for name, job in self.jobs.items():
            self.await_checkpoint_of(job, self.folder / name)
        for name in ("too few", "plain"):
            self.assertEqual(self.facts(self.jobs[name])["NodeList"], "h[1-2]")
        subprocess.run([HOSTS, self.lab, "kill", "h2"], check=True)
        # No job starts there again. Were it down now, Slurm would end the steps of its jobs on other nodes at once.
        self.slurm("scontrol", "update", "nodename=h2", "state=drain", "reason=lost")
        for name in ("too few", "plain", "first node"):
            self.await_job(self.jobs[name], self.NOTICED, Restarts="1")
        self.slurm("scontrol", "update", "nodename=h2", "state=down", "reason=lost")

        steps = {}
        for name in ("too few", "plain"):
            steps[name] = int(read_checkpoint(newest(self.folder / name))["attributes"]["step"]) + 3
            with self.configs[name].open("a") as config:
                config.write(f"max-steps = {steps[name]}\n")
        for name in steps:
            with self.subTest(name):
                self.await_job(self.jobs[name], JobState="COMPLETED", Restarts="1", NodeList="h[1,3]", ExitCode="0:0")
                self.assertIn("resuming after", self.log(self.jobs[name]))
                self.assert_same_as_undisturbed(name, steps[name])
        with self.subTest("first node"):
            self.await_job(self.jobs["first node"], JobState="PENDING", Restarts="1")
        with self.subTest("goes on"):
            self.await_job(self.jobs["goes on"], JobState="COMPLETED", Restarts="0", NodeList="h1", ExitCode="0:0")
            self.assertIn("rank 1 on h2 was lost", self.log(self.jobs["goes on"]))
            self.assert_same_as_undisturbed("goes on", 500)


if __name__ == "__main__":
    helper.main()
