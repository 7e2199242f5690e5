"""scripts/launch in jobs of batch systems, and the batch scripts of PBS and LSF, with stand-ins for their commands."""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

import helper
from helper import children, read_checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from scaling import ranks  # noqa: E402

OF_A_JOB = ("SLURM", "PBS", "LSB", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl_tcp_if")


def newest(out):
    """The newest checkpoint of a run."""
    return max(out.rglob("*.h5"), key=lambda path: path.stat().st_mtime_ns)


def descent(number):
    """A process, its children, theirs, and so on."""
    return [number, *(one for child in children(number) for one in descent(child))]


def environment(**variables):
    """The environment of a batch job, without variables of any other job, and without an installed annulus."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
    return {**outside, **helper.ENVIRONMENT, "PATH": helper.path_without("annulus"), "ANNULUS": helper.ANNULUS, "ANNULUS_ROOT": str(ROOT),
            **{name: str(value) for name, value in variables.items()}}


class BatchTest(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.programs = self.folder / "programs"
        self.programs.mkdir()

    def stand_in(self, name, text):
        """A shell script with this `text`, found before other programs of that name. It may trap signals that launch ignores."""
        file = self.programs / name
        file.write_text(f"#!/usr/bin/env -S --default-signal=USR1 sh\n{text}\n")
        file.chmod(0o755)
        return file

    def environment(self, **variables):
        return environment(PATH=f"{self.programs}:{helper.path_without('annulus')}", **variables)

    @classmethod
    def write_config(cls, path, out, **options):
        """A file for --config, of a run that ends after --max-steps if given."""
        _, *arguments = cls.training(out, epochs=1000000, **{"all_reduce": "ring", **options})
        lines = [f"{name[2:]} = {value if isinstance(value, (int, float)) else json.dumps(str(value))}"
                 for name, value in zip(arguments[::2], arguments[1::2])]
        path.write_text("\n".join(lines) + "\n")
        return path

    def assert_went_on(self, out, whole, ranks, steps, **options):
        """A run of several jobs ends with the same checkpoint as an uninterrupted run."""
        self.assertEqual(read_checkpoint(newest(out))["attributes"]["step"], steps)
        self.train(whole, ranks=ranks, epochs=1000000, max_steps=steps, all_reduce="ring", **options)
        self.assert_same_state(newest(whole), newest(out))


class Launch(BatchTest):
    """The command that scripts/launch runs on hosts with 4 cores and 2 hardware threads each."""

    def setUp(self):
        super().setUp()
        self.stand_in("nproc", "echo 8")
        self.stand_in("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
        self.stand_in("lscpu", "echo '# Core,Socket'; for n in 0 1 2 3 0 1 2 3; do echo $n,0; done")

    def launch(self, *arguments, status=0, **variables):
        process = subprocess.run([ROOT / "scripts/launch", "--dry-run", *map(str, arguments), "./annulus", "train"],
                                 capture_output=True, text=True, env=self.environment(**variables))
        self.assertEqual((process.returncode, process.stdout), (status, ""), process.stderr)
        self.assertEqual(len(process.stderr.splitlines()), 1, process.stderr)
        return process.stderr

    def assert_options(self, line, *wanted):
        words = " ".join(shlex.split(line))
        self.assertRegex(words, r"^\+ mpirun -np \d+ .* ./annulus train$")
        for options in wanted:
            self.assertIn(f" {options} ", words)

    def slots(self, *hosts):
        path = self.folder / "slots"
        path.write_text("".join(f"{host}\n" for host in hosts))
        return path

    def test_hosts_and_ranks_come_from_the_job(self):
        self.stand_in("scontrol", '[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"')
        jobs = {"slurm": {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"},
                "pbs": {"PBS_NODEFILE": self.slots("n1", "n1", "n2", "n2")},
                "lsf": {"LSB_DJOB_HOSTFILE": self.slots("n1", "n1", "n2", "n2")}}
        for name, variables in jobs.items():
            with self.subTest(name):
                line = self.launch(**variables)
                self.assert_options(line, "-np 4", "--host n1:2,n2:2 --mca orte_launch_agent env --block-signal=INT,TERM orted",
                                    "--map-by ppr:2:node:PE=2 --bind-to core")
                line = self.launch("-np", 2, **variables)
                self.assert_options(line, "-np 2", "--host n1:1,n2:1", "--map-by ppr:1:node:PE=4")
                line = self.launch("-np", 8, "--hosts", "a", **variables)
                self.assert_options(line, "-np 8", "--host a:8", "--oversubscribe --bind-to none")
        self.stand_in("mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
        self.assert_options(self.launch(**jobs["pbs"]), "--host n1:2,n2:2 --map-by ppr:2:node:PE=2")  # it has no orted

    def test_hosts_that_differ_are_refused(self):
        line = self.launch(PBS_NODEFILE=self.slots("n1", "n1", "n2"), status=2)
        self.assertIn("different numbers of ranks: n1 n1 n2", line)
        line = self.launch(SLURM_JOB_NODELIST="n[1-2]", SLURM_TASKS_PER_NODE="2,1", status=2)
        self.assertIn("different numbers of ranks (2,1)", line)

    def test_the_number_of_ranks_is_required(self):
        for arguments in ((), ("--hosts", "a,b"), ("-np", 0)):
            self.assertIn("usage: launch -np N", self.launch(*arguments, status=2))

    def test_options_as_mpirun_has_them(self):
        file = self.folder / "hostfile"
        file.write_text("# two hosts\na slots=2 max_slots=8\n\nb slots=2  # the second\n")
        for arguments in (("--hosts", "a:2,b:2"), ("--host", "a:2,b:2"), ("--hostfile", file)):
            line = self.launch(*arguments)
            self.assert_options(line, "-np 4", "--host a:2,b:2", "--map-by ppr:2:node:PE=2 --bind-to core")
            self.assert_options(self.launch("-n", 8, *arguments), "-np 8", "--host a:4,b:4")
        self.assert_options(self.launch("-n", 2, "-x", "A", "-x", "B=a b"), "-np 2", "-x A -x B=a b")
        file.write_text("a\nb\n")
        self.assert_options(self.launch("-np", 2, "--hostfile", file), "-np 2", "--host a:1,b:1")
        self.assertIn("usage: launch -np N", self.launch("--hostfile", file, status=2))
        self.assertIn("different numbers of ranks: a a b", self.launch("--hosts", "a:2,b:1", status=2))
        self.assertEqual(self.launch("--hosts", "a:x", status=2), "launch: a:x: not a host with its number of ranks, such as a:4\n")
        self.assertIn("none: No such file or directory", self.launch("--hostfile", "none", status=2))
        self.assertIn("--nodes", self.launch("--nodes", 2, status=2))

    def test_a_rank_for_each_gpu(self):
        self.assert_options(self.launch("--gpus", CUDA_VISIBLE_DEVICES="0,2"), "-np 2", "--map-by ppr:2:node:PE=2")
        self.stand_in("nvidia-smi", '[ "$*" = --list-gpus ] && printf "GPU 0: x\\nGPU 1: x\\nGPU 2: x\\nGPU 3: x\\n"')
        line = self.launch("--gpus", "--hosts", "a,b")
        self.assert_options(line, "-np 8", "--host a:4,b:4", "--map-by ppr:4:node:PE=1")
        self.assertIn("-np and --gpus cannot be used together", self.launch("--gpus", "-np", 2, status=2))
        self.stand_in("nvidia-smi", "exit 0")
        self.assertIn("no GPU found on this host", self.launch("--gpus", status=2))

    def test_hyperthreads(self):
        line = self.launch("-np", 2, "--hyperthreads")
        self.assert_options(line, "--map-by ppr:2:node:PE=4 --use-hwthread-cpus --bind-to hwthread")
        self.assert_options(self.launch("-np", 8), "--oversubscribe --bind-to none")

    def test_the_network_that_joins_the_hosts(self):
        """This host is a, 10.0.0.1 in 10.0.0.0/24; b is in the same network, c behind a router, and d is unknown."""
        self.stand_in("getent", """case "$*" in
          "ahostsv4 a") echo "10.0.0.1 STREAM a" ;;
          "ahostsv4 b") echo "10.0.0.2 STREAM b" ;;
          "ahostsv4 c") echo "10.9.0.3 STREAM c" ;;
          *) exit 2 ;;
          esac""")
        self.stand_in("ip", """case "$*" in
          *"route get 10.0.0.1") echo "local 10.0.0.1 dev lo src 10.0.0.1 uid 0" ;;
          *"route get 10.0.0.2") echo "10.0.0.2 dev eth1 src 10.0.0.1 uid 0" ;;
          *"route get 10.9.0.3") echo "10.9.0.3 via 10.0.0.254 dev eth1 src 10.0.0.1 uid 0" ;;
          *"address show to 10.0.0.1") echo "3: eth1    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth1" ;;
          *) exit 1 ;;
          esac""")
        found = "--mca btl_tcp_if_include 10.0.0.1/24 --mca oob_tcp_if_include 10.0.0.1/24"
        self.assert_options(self.launch("-np", 2, "--hosts", "a,b"), found)
        for hosts in ("a", "a,c", "b,c", "a,d"):
            self.assertNotIn("if_include", self.launch("-np", 2, "--hosts", hosts))
        line = self.launch("-np", 2, "--hosts", "a,b", "--interface", "ib0")
        self.assert_options(line, "--mca btl_tcp_if_include ib0 --mca oob_tcp_if_include ib0")


class LaunchedJob(BatchTest):
    """How scripts/launch handles mpirun's messages and leftover files."""

    def start(self, *arguments):
        return subprocess.Popen(
            [ROOT / "scripts/launch", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True, env=self.environment())

    def launch(self, *arguments):
        return helper.finish(self.start(*arguments))

    def test_interrupted_training_stops_with_a_checkpoint(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                out = self.folder / number.name
                process = self.start("-np", 2, helper.ANNULUS, *self.training(out, epochs=1000000, max_steps=1000000))
                self.await_checkpoint(process, out)
                os.killpg(process.pid, number)  # as Ctrl-C on a terminal
                result = helper.finish(process)
                self.assertEqual(result.status, helper.STOPPED, str(result))
                self.assertEqual(json.loads((out / "results.json").read_text())["status"], "stopped")

    def test_a_request_to_stop_is_repeated(self):
        """mpirun passes none on to ranks that it has not started yet."""
        self.stand_in("mpirun", """trap 'echo; n=x$n; [ $n != xx ] || exit 75' USR1; echo ready >&2; while sleep 0.1; do :; done""")
        process = self.start("-np", 2, "true", "train")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        self.assertEqual([process.stderr.readline() for _ in range(2)][1], "ready\n")
        process.send_signal(signal.SIGTERM)
        result = helper.finish(process)
        self.assertEqual((result.status, result.out), (helper.STOPPED, "\n\n"))

    def test_a_request_to_stop_never_ends_mpirun(self):
        """mpirun handles SIGUSR1 neither at its beginning nor at its end."""
        self.stand_in("mpirun", "").write_text("#!/bin/sh\necho ready >&2; sleep 3; exit 75\n")
        process = self.start("-np", 2, "true", "train")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        self.assertEqual([process.stderr.readline() for _ in range(2)][1], "ready\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(helper.finish(process).status, helper.STOPPED)

    def test_a_killed_launch_leaves_no_rank(self):
        for _ in range(3):
            process = self.start("-np", 2, "sh", "-c", "echo $$; sleep 60")
            ranks = [int(process.stdout.readline()) for _ in range(2)]
            process.kill()
            process.communicate()
            deadline = time.monotonic() + 20
            while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.1)

    def test_an_interrupt_ends_other_commands(self):
        self.stand_in("mpirun", "trap 'echo HUP >&2; exit 1' HUP; echo ready >&2; while sleep 0.1; do :; done")
        process = self.start("-np", 2, "true")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        self.assertEqual([process.stderr.readline() for _ in range(2)][1], "ready\n")
        process.send_signal(signal.SIGTERM)
        result = helper.finish(process)
        self.assertEqual((result.status, result.err), (128 + signal.SIGTERM, "HUP\n"))

    def test_a_cancelled_job_stops_with_a_checkpoint(self):
        """Batch systems send SIGTERM (LSF: SIGINT) to all processes at once: to launch, mpirun, its daemons and the ranks."""
        out = self.folder / "out"
        process = self.start("-np", 2, helper.ANNULUS, *self.training(out, epochs=1000000, max_steps=1000000))
        self.await_checkpoint(process, out)
        mpirun = subprocess.run(["pgrep", "-P", str(process.pid)], check=True, text=True, stdout=subprocess.PIPE).stdout.split()
        ranks = subprocess.run(["pgrep", "-P", ",".join(mpirun)], check=True, text=True, stdout=subprocess.PIPE).stdout.split()
        for pid in (*mpirun, *ranks, process.pid):
            os.kill(int(pid), signal.SIGTERM)
        result = helper.finish(process)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertEqual(json.loads((out / "results.json").read_text())["status"], "stopped")

    def test_an_ignored_signal_stays_ignored(self):
        self.stand_in("mpirun", "echo ready >&2; sleep 1")
        process = subprocess.Popen(["nohup", ROOT / "scripts/launch", "-np", "2", "true"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment())
        while process.stderr.readline() not in ("ready\n", ""):
            pass
        process.send_signal(signal.SIGHUP)
        self.assertEqual(helper.finish(process).status, 0)

    def test_an_error_is_printed_without_mpirun_messages(self):
        missing = self.training(self.folder / "out", data=self.folder / "none.h5")
        for arguments, status in ((missing, 1), ((*missing, "--bacth", 3), 2)):
            result = self.launch("-np", 2, helper.ANNULUS, *arguments)
            self.assertEqual(result.status, status, str(result))
            command, *lines = result.err.splitlines()
            self.assertTrue(command.startswith("+ mpirun"), str(result))
            self.assertEqual((len(lines), lines[0][:9]), (1, "annulus: "), str(result))

    def test_other_messages_of_mpirun_stay(self):
        self.assertIn("nowhere", self.launch("-np", 2, self.folder / "nowhere").err)
        result = self.launch("-np", 2, helper.ANNULUS,
                             *self.training(self.folder / "out"), "--inject", "kill:rank=1,step=2")
        self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
        self.assertRegex(result.err, r"rank 1 .* signal 9")

    def test_leftover_files_of_this_job_are_removed(self):
        """A stand-in for a killed mpirun: it leaves segments of its job, 4096 x 65536 + 1, and there are another job's."""
        name = f"vader_segment.test{os.getpid()}.0."
        segments = [pathlib.Path("/dev/shm") / (name + rest) for rest in ("10000001.0", "10000001.1", "10010001.0")]
        for segment in segments:
            self.addCleanup(segment.unlink, missing_ok=True)
            segment.touch()
        self.stand_in("mpirun", """while [ "$1" != --report-uri ]; do shift; done
            echo "268435456.0;tcp://127.0.0.1:1" > "$2"; echo killed >&2; kill -9 $$""")
        result = self.launch("-np", 2, "true")
        self.assertEqual((result.status, result.err.splitlines()[1:]), (128 + signal.SIGKILL, ["killed"]), str(result))
        self.assertEqual([segment.exists() for segment in segments], [False, False, True])


class Messages(unittest.TestCase):
    """What scripts/launch shows of mpirun's stderr."""

    DASHES = "-" * 76

    def box(self, *lines):
        return [self.DASHES, *lines, self.DASHES]

    def shown(self, lines, survives=False):
        noted = []
        found = ranks.shown([f"{line}\n".encode() for line in lines], survives, noted.append)
        return [line.decode().rstrip("\n") for line in found], noted

    def test_boxes(self):
        ours = self.box("mpirun detected that one or more processes exited", "", "  Exit code:    75")
        theirs = self.box("mpirun detected that one or more processes exited", "", "  Exit code:    139")
        other, lost = self.box("A system call failed", "1"), self.box("WARNING: Open MPI failed to TCP connect", "2")
        abort = self.box("MPI_ABORT was invoked on rank 0", "3")
        lines = ["before", *abort, *other, *ours, "between", *theirs, *lost, *other, *other, self.DASHES]
        for survives in (False, True):
            kept = [] if survives else lost
            self.assertEqual(self.shown(lines, survives),
                             (["before", *other, "between", *theirs, *kept, *other, *other, self.DASHES], []))
        self.assertEqual(self.shown(abort[:-1]), (abort[:-1], []))  # without an end

    def test_reports_of_a_state(self):
        reports = ["annulus: the job survives lost ranks", "[vm:1] [[7,0],0] ACTIVATE PROC [[7,1],2] STATE RUNNING AT a.c:1",
                   "annulus: the job ends with status 75, ranks lost: 1"]
        lines = ["a", *reports, "annulus: the job ends with status 75", "[vm:1] ACTIVATE"]
        self.assertEqual(self.shown(lines), (["a", *lines[-2:]], reports))


class SurvivedLosses(BatchTest):
    """How scripts/launch runs a program with --survive, under a stand-in for mpirun."""

    NOISE = r"""echo '[vm:1] PMIX ERROR: BAD-PARAM in file ../../src/event/pmix_event_notification.c at line 1033' >&2
        echo '[vm:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource in file ../../orte/util/show_help.c at line 501' >&2"""

    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        self.stand_in("ranks", """case "$*" in *--survive*--print-config*) echo survive=true ;; *) echo survive=false ;; esac""")

    def mpirun(self, *runs, version="4.1.4"):
        """Its first start runs the first of `runs`, and so on; its arguments are logged."""
        cases = "".join(f"{number}) {run} ;;\n" for number, run in enumerate(runs, 1))
        self.stand_in("mpirun", f"""[ "$*" != --version ] || {{ echo "mpirun (Open MPI) {version}"; exit; }}
            echo "$*" >> {self.log}
            echo "0.0;tcp://127.0.0.1:1" > "$2"  # its address, after --report-uri
            case $(wc -l < {self.log}) in
            {cases}*) echo "started once more" >&2; exit 99 ;;
            esac""")

    @staticmethod
    def ends_with(status, lost):
        return f"echo 'annulus: the job ends with status {status}, ranks lost: {lost}' >&2"

    def start(self, *arguments, ranks=4, **variables):
        process = subprocess.Popen(
            [ROOT / "scripts/launch", "-np", str(ranks), *map(str, arguments), "ranks", "train", "--survive"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=self.environment(**variables))
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process

    def launch(self, *arguments, **variables):
        """Returns the result and the arguments of each mpirun."""
        self.log.unlink(missing_ok=True)
        result = helper.finish(self.start(*arguments, **variables))
        return result, self.log.read_text().splitlines() if self.log.exists() else []

    def assert_starts(self, wanted, status, *arguments, **variables):
        result, starts = self.launch("--restarts", 2, *arguments, **variables)
        self.assertEqual((len(starts), result.status), (wanted, status), str(result))
        return starts

    def test_mpirun_lets_ranks_survive(self):
        recovery = "--enable-recovery --mca state_base_verbose 1 --mca orte_base_help_aggregate 0"
        for version, options in (("4.1.4", recovery), ("5.0.11", "--with-ft ulfm")):
            self.mpirun(version=version)
            for arguments, survives in ((["--survive"], True), (["--config", "x.toml"], False), ([], False)):
                shown = subprocess.run([ROOT / "scripts/launch", "-np", "2", "--dry-run", "ranks", "train", *arguments],
                                       capture_output=True, text=True, env=self.environment()).stderr
                if survives:
                    self.assertIn(f" -x ANNULUS_REPORT_STATUS=1 {options} ranks train ", shown)
                else:
                    self.assertNotRegex(shown, "REPORT_STATUS|ulfm|recovery")

    def test_the_program_is_asked_whether_ranks_survive(self):
        def asked(*arguments):
            return subprocess.run(
                [ROOT / "scripts/launch", "--survives", helper.ANNULUS, *map(str, self.training(self.folder / "out")),
                 "--shards", "2", *arguments], capture_output=True, text=True, env=self.environment())

        config = self.folder / "run.toml"
        for text, survives in (("survive = true", True), ("  survive=true # yes", True), ('"survive" = true', True),
                               ("'survive'=true", True), ("survive = false", False), ("# survive = true", False)):
            for option in (["--config", config], [f"--config={config}"]):
                config.write_text(text + "\n")
                done = asked(*option)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0 if survives else 1, "", ""), text)
        config.write_text("survive = true\n")
        for options, survives in ((["--survive"], True), (["--survive=true"], True), (["--survive=false"], False), ([], False),
                                  (["--survive", "--quiet"], True), (["--survive", "--json=-"], True),
                                  (["--survive=false", "--config", config], False)):
            self.assertEqual(asked(*options).returncode, 0 if survives else 1, options)
        wrong = asked("--survive", "--bacth", "3")
        self.assertEqual((wrong.returncode, wrong.stdout, wrong.stderr.count("\n")), (2, "", 1))
        self.assertIn("--bacth", wrong.stderr)

    def test_the_exit_status_is_that_reported(self):
        for run, status in ((self.ends_with(0, 1), 0), (self.ends_with(75, 3), 75), (f"{self.ends_with(0, 0)}; exit 1", 0),
                            ("exit 0", 1), ("exit 3", 3)):
            with self.subTest(run):
                self.mpirun(f"{self.NOISE}; echo warning >&2; {run}")
                result, _ = self.launch()
                self.assertEqual(result.status, status, str(result))
                self.assertEqual(result.err.splitlines()[1:], ["warning"])
                self.assertLess(result.seconds, 5)

    def test_mpirun_is_ended_after_the_report(self):
        for trap, seconds in (("", (1.5, 4)), ("trap '' HUP", (3.5, 8))):
            with self.subTest(trap):
                self.mpirun(f"{trap}\nsleep 60 > /dev/null 2>&1 &\necho $! > {self.folder}/child; {self.ends_with(75, 1)}; wait")
                result, _ = self.launch()
                self.assertEqual(result.status, helper.STOPPED, str(result))
                self.assertGreater(result.seconds, seconds[0])
                self.assertLess(result.seconds, seconds[1])
                child = int((self.folder / "child").read_text())
                if trap:
                    self.assertFalse(helper.is_running(child))
                else:  # mpirun ends its own
                    os.kill(child, signal.SIGKILL)

    STATE = "echo '[vm:1] [[7,0],0] ACTIVATE PROC [[7,{}],{}] STATE {} AT ../../orte/file.c:17' >&2"
    DEATH = STATE.format(1, 2, "ABORTED BY SIGNAL")
    HOST_LOST = STATE.format(0, 1, "COMMUNICATION FAILURE")
    BEGUN = "echo 'annulus: the job survives lost ranks' >&2"

    def test_a_job_that_loses_ranks_before_it_can_survive_that_is_started_again(self):
        """Up to three times: it has done nothing yet."""
        for death, what in ((self.DEATH, "rank 2"), (self.HOST_LOST, "a host")):
            with self.subTest(what):
                self.mpirun(*[f"{death}; exec sleep 60"] * 4)
                result, starts = self.launch()
                self.assertEqual((result.status, len(starts)), (helper.STOPPED, 4), str(result))
                self.assertEqual([line for line in result.err.splitlines() if "before" in line],
                                 [f"launch: {what} was lost before the job could survive this: the job ends"] * 4)
                self.assertLess(result.seconds, 20)
                self.mpirun(f"{death}; exec sleep 60", self.ends_with(0, 0))
                result, starts = self.launch()
                self.assertEqual((result.status, len(starts)), (0, 2), str(result))
                self.assertNotIn("--resume", starts[1])

    def test_a_launcher_that_is_cut_off_ends(self):
        """When no rank is left on its host, nor on others that answer."""
        for hosts, run, seconds in ((f"{socket.gethostname()},n1,n2", "OMPI_COMM_WORLD_RANK=0 sleep 4", 4),
                                    ("n1,n2", f"sleep 2; {self.HOST_LOST}", 2)):
            for left in (True, False):
                with self.subTest(hosts, left=left):
                    self.stand_in("agent", f"""case "$1 $2" in
                        "n2 grep -qsxz PMIX_NAMESPACE=1 "*) {str(left).lower()} ;; *) false ;; esac""")
                    end = f"sleep 7; {self.ends_with(0, 1)}" if left else "exec sleep 60"
                    self.mpirun(f"{self.BEGUN}; {run}; {end}")
                    result, _ = self.launch("--hosts", hosts, "--interface", "ib0",
                                            OMPI_MCA_plm_rsh_agent=f"{self.programs}/agent")
                    self.assertGreater(result.seconds, seconds)
                    if left:
                        self.assertEqual((result.status, result.err.splitlines()[1:]), (0, []), str(result))
                        continue
                    self.assertEqual(result.status, helper.STOPPED, str(result))
                    self.assertEqual(result.err.splitlines()[1:],
                                     ["launch: no rank is left on this host or on others that answer: the job ends"])
                    self.assertLess(result.seconds, seconds + 11)

    def test_mpirun_ends_after_a_lost_host(self):
        self.mpirun(f"{self.BEGUN}; {self.HOST_LOST}")
        result, _ = self.launch("--hosts", "n1,n2", "--interface", "ib0", OMPI_MCA_plm_rsh_agent="false")
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertEqual(result.err.splitlines()[1:],
                         ["launch: no rank is left on this host or on others that answer: the job ends"])

    def test_signals_reach_mpirun_once(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number.name):
                self.mpirun("for name in INT TERM USR1; do trap \"echo $name >&2\" $name; done; echo ready >&2; "
                            f"while sleep 0.1; do n=$((n + 1)); [ $n -lt 12 ] || {{ {self.ends_with(75, 1)}; exit 1; }}; done")
                self.log.unlink(missing_ok=True)
                process = self.start("--restarts", 1)
                lines = [process.stderr.readline() for _ in range(2)]
                self.assertEqual(lines[1], "ready\n")
                os.killpg(process.pid, number)  # as Ctrl-C on a terminal
                result = helper.finish(process)
                self.assertEqual((result.status, result.err), (helper.STOPPED, "USR1\n"))  # which reaches the ranks
                self.assertEqual(len(self.log.read_text().splitlines()), 1)

    def test_a_second_signal_ends_the_job(self):
        self.mpirun("trap 'echo USR1 >&2' USR1; trap 'echo HUP >&2; exit 1' HUP; echo ready >&2; while sleep 0.1; do :; done")
        process = self.start("--restarts", 1)
        for expected in ("+", "ready", "USR1"):
            self.assertTrue(process.stderr.readline().startswith(expected))
            if expected != "+":
                os.killpg(process.pid, signal.SIGINT)
        result = helper.finish(process)
        self.assertEqual((result.status, result.err), (128 + signal.SIGINT, "HUP\n"))

    def test_a_killed_mpirun_is_started_again(self):
        self.mpirun(f"{self.BEGUN}; OMPI_COMM_WORLD_RANK=0 sleep 2 & sleep 0.5; kill -9 $$", self.ends_with(0, 0))
        self.assertTrue(self.assert_starts(2, 0)[1].endswith(" --resume"))
        self.mpirun("kill -9 $$")
        result, _ = self.launch()
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertEqual(result.err.splitlines()[1:], ["launch: mpirun was killed (signal 9): the job ends"])

    def test_spares_are_further_ranks(self):
        self.mpirun(self.ends_with(0, 0))
        _, starts = self.launch("--spares", 2)
        self.assertTrue(starts[0].startswith("--report-uri"), starts)
        self.assertIn(" -np 6 ", starts[0])
        for option in ("--spares", "--restarts"):
            refused = subprocess.run([ROOT / "scripts/launch", "-np", "2", option, "1", "ranks", "train"],
                                     capture_output=True, text=True, env=self.environment())
            self.assertEqual(refused.returncode, 2)
            self.assertIn("require the program's --survive", refused.stderr)

    def test_a_job_that_lost_too_many_ranks_is_started_again(self):
        for first in (self.ends_with(75, 2), self.ends_with(1, 1), "exit 0"):
            with self.subTest(first):
                self.mpirun(first, self.ends_with(0, 0))
                starts = self.assert_starts(2, 0)
                self.assertNotIn("--resume", starts[0])
                self.assertTrue(starts[1].endswith(" ranks train --survive --resume"), starts)
                self.assertIn(" -np 4 ", starts[1])

    def test_not_more_often_than_asked_for(self):
        self.mpirun(*[self.ends_with(75, 1)] * 3)
        starts = self.assert_starts(3, helper.STOPPED)
        self.assertEqual(starts[2].count("--resume"), 1)

    def test_other_jobs_are_not_started_again(self):
        for run, status in ((self.ends_with(0, 3), 0), (self.ends_with(75, 0), helper.STOPPED), (self.ends_with(2, 0), 2),
                            ("exit 3", 3)):
            with self.subTest(run):
                self.mpirun(run)
                self.assert_starts(1, status)

    def test_it_is_started_on_the_hosts_that_answer(self):
        self.mpirun(self.ends_with(75, 2), self.ends_with(75, 2), self.ends_with(0, 0))
        self.stand_in("agent", f"""[ "$1 $3" = "-q true" ] || exit 9
            case $2 in a) ;; b) sleep 60 ;; *) [ $(wc -l < {self.log}) -eq 1 ] ;; esac""")
        starts = self.assert_starts(3, 0, "--hosts", "c,b,a", "--interface", "ib0", ranks=6,
                                    OMPI_MCA_plm_rsh_agent=f"{self.programs}/agent -q")
        for start, options in zip(starts, ("-np 6 .*--host c:2,b:2,a:2 ", "-np 4 .*--host c:2,a:2 ", "-np 2 .*--host a:2 ")):
            self.assertRegex(start, options + ".*if_include ib0 ")


class Jobs(BatchTest):
    """A job of 2 ranks on this machine, as a batch system starts it."""

    def setUp(self):
        super().setUp()
        self.out, self.config, self.hosts = self.folder / "out", self.folder / "run.toml", self.folder / "hosts"
        self.hosts.write_text("localhost\nlocalhost\n")
        # Few steps until the job is stopped: the uninterrupted run makes them all again.
        self.slow = self.stand_in("slow-annulus", f"""[ "$1" != train ] || set -- "$@" --inject delay:rank=0,seconds=0.05
            exec {helper.ANNULUS} "$@\"""")

    def job(self, script, **variables):
        process = subprocess.Popen(
            [ROOT / script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.folder, start_new_session=True, env=self.environment(ANNULUS_OPTIONS=f"--config {shlex.quote(str(self.config))}", **{"ANNULUS": self.slow, **variables}))
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process

    def go_on(self, job):
        """The next job, which runs 3 more steps."""
        steps = int(read_checkpoint(newest(self.out))["attributes"]["step"]) + 3
        self.write_config(self.config, self.out, max_steps=steps)
        result = helper.finish(job())
        self.assertEqual(result.status, 0, str(result))
        self.assert_went_on(self.out, self.folder / "whole", 2, steps)

    def pbs(self, walltime, **variables):
        """PBS wraps qstat's lines."""
        self.stand_in("qstat", rf"""[ "$*" = "-f 7.server" ] && printf 'Job Id: 7.server
    Resource_List.ncpus = 2
    Resource_List.select = 1:ncpus=2:\n\tmpiprocs=2
    Resource_List.walltime = {walltime}
    Submit_arguments = -l walltime=09:09:09\n'""")
        self.stand_in("qsub", f"""for word; do echo "$word"; done > {self.folder}/submitted
            printf '%s\\n' "$ANNULUS_OPTIONS" "$ANNULUS" "$ANNULUS_ROOT" > {self.folder}/environment""")
        return self.job("scripts/pbs/train.pbs", PBS_NODEFILE=self.hosts, PBS_JOBID="7.server", PBS_QUEUE="long",
                        PBS_O_WORKDIR=self.folder, **variables)

    def test_pbs(self):
        self.write_config(self.config, self.out)
        stopped = helper.finish(self.pbs("00:02:05"))
        self.assertEqual(stopped.status, helper.STOPPED, str(stopped))
        submitted = self.folder / "submitted"
        self.assertEqual(submitted.read_text().splitlines(), [
            "-q", "long", "-l", "select=1:ncpus=2:mpiprocs=2", "-l", "walltime=00:02:05", "-v",
            "ANNULUS_OPTIONS,ANNULUS,ANNULUS_ROOT", f"{ROOT}/scripts/pbs/train.pbs"])
        self.assertEqual((self.folder / "environment").read_text().splitlines(),
                         [f"--config {self.config}", str(self.slow), str(ROOT)])
        submitted.unlink()
        self.go_on(lambda: self.pbs("01:00:00"))
        self.assertFalse(submitted.exists())

    def test_a_cancelled_pbs_job_leaves_a_checkpoint(self):
        cancelled = self.signalled(lambda: self.pbs("01:00:00"), signal.SIGTERM)
        self.assertEqual(cancelled.status, helper.STOPPED, str(cancelled))
        self.assertFalse((self.folder / "submitted").exists())
        self.go_on(lambda: self.pbs("01:00:00"))

    def test_paths_with_blanks_commas_and_quotes(self):
        """Paths of the repository and the configuration, in each batch system; qsub passes on its environment."""
        root = self.folder / "my repository, 'new'"
        (root / "build").mkdir(parents=True)
        (root / "scripts").symlink_to(ROOT / "scripts")
        (root / "build/annulus").symlink_to(self.slow)
        self.config = self.folder / "my, \"own\" run.toml"
        variables = {"ANNULUS": "", "ANNULUS_ROOT": root}
        self.write_config(self.config, self.out)
        stopped = helper.finish(self.pbs("00:02:05", **variables))
        self.assertEqual(stopped.status, helper.STOPPED, str(stopped))
        submitted = (self.folder / "submitted").read_text().splitlines()
        self.assertEqual(submitted[6:], ["-v", "ANNULUS_OPTIONS,ANNULUS,ANNULUS_ROOT", f"{root}/scripts/pbs/train.pbs"])
        self.assertEqual((self.folder / "environment").read_text().splitlines(), [f"--config {shlex.quote(str(self.config))}", "", str(root)])
        self.go_on(lambda: self.lsf(**variables))

    def test_pbs_does_not_requeue_a_failed_job(self):
        self.write_config(self.config, self.out, data=self.folder / "none.h5")
        result = helper.finish(self.pbs("01:00:00"))
        self.assertEqual(result.status, 1, str(result))
        self.assertFalse((self.folder / "submitted").exists())
        result = helper.finish(self.pbs("00:02:00"))
        self.assertEqual((result.status, result.err), (2, "train.pbs: walltime must be more than two minutes\n"))

    def lsf(self, **variables):
        return self.job("scripts/lsf/train.lsf", LSB_DJOB_HOSTFILE=self.hosts, **variables)

    def signalled(self, job, number):
        """A job that receives a signal. PBS and LSF send it to all processes that they find on the first host."""
        self.write_config(self.config, self.out)
        process = job()
        self.await_checkpoint(process, self.out)
        for one in reversed(descent(process.pid)):  # the ranks first, or mpirun may end them earlier
            os.kill(one, number)
        return helper.finish(process)

    def test_lsf(self):
        stopped = self.signalled(self.lsf, signal.SIGUSR1)
        self.assertEqual(stopped.status, helper.STOPPED, str(stopped))
        self.assertIn('#BSUB -Q "75"', (ROOT / "scripts/lsf/train.lsf").read_text())
        self.go_on(self.lsf)

    def test_a_missing_program_is_named(self):
        for job, name in ((self.lsf, "train.lsf"), (lambda **variables: self.pbs("01:00:00", **variables), "train.pbs")):
            result = helper.finish(job(ANNULUS="", ANNULUS_ROOT=""))
            self.assertEqual((result.status, result.err), (2, f"{name}: no annulus: set ANNULUS_ROOT to the repository\n"))

    def test_lsf_does_not_requeue_a_cancelled_job(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                cancelled = self.signalled(self.lsf, number)
                self.assertEqual(cancelled.status, 128 + signal.SIGTERM, str(cancelled))
                self.go_on(self.lsf)
                for folder in (self.out, self.folder / "whole"):
                    shutil.rmtree(folder)


class Container(unittest.TestCase):
    """scripts/annulus.def, as far as it can be tested without Apptainer."""

    def sections(self):
        text = (ROOT / "scripts/annulus.def").read_text()
        return dict(re.findall(r"^%(\w+)\n((?:(?:    .*)?\n)*)", text, re.MULTILINE))

    def test_it_copies_everything_that_a_build_needs(self):
        copied = {shlex.split(line)[0] for line in self.sections()["files"].splitlines() if line.strip()}
        lists = (ROOT / "CMakeLists.txt").read_text()
        built_from = set(re.findall(r"(?:GLOB|GLOB_RECURSE) \w+ CONFIGURE_DEPENDS (\w+)/", lists))
        self.assertEqual(copied, built_from | {"CMakeLists.txt", "scripts"})
        for name in copied:
            self.assertTrue((ROOT / name).exists(), name)

    def test_its_scripts_are_valid(self):
        sections = self.sections()
        self.assertEqual(list(sections), ["arguments", "files", "post", "environment", "runscript", "test"])
        for name in ("post", "environment", "runscript", "test"):
            self.assertTrue(sections[name].strip())
            checked = subprocess.run(["sh", "-n"], input=sections[name], text=True, capture_output=True)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""), name)


if __name__ == "__main__":
    helper.main()
