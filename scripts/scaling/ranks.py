"""Ranks of a job: the hosts that a batch system gives, mpirun with its messages and signals, and the end of a job that
goes on when ranks die. Uses the standard library only."""
import argparse
import contextlib
import math
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

from scaling.messages import BEGUN, RANK, REPORT, SILENCE, shown

STOPPED, TAKEN_OVER = 75, 76  # exit statuses of ours: with a checkpoint to resume from; another job continues the run
# Those that are passed on. nohup, and shells for programs in the background, let some be ignored.
SIGNALS = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
           if signal.getsignal(number) != signal.SIG_IGN]
# Cancelled jobs send these to all processes: the ranks stop with a checkpoint, but mpirun and its daemons would end the ranks
# within a second. They act on SIGHUP instead.
BLOCKED = (signal.SIGINT, signal.SIGTERM)
REPEATED = 2  # seconds; mpirun passes no signal on to ranks that it has not started yet
NO_RANK_LEFT = "no rank is left on this host or on others that answer"


def give_up(text):
    print(f"{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(2)


def output(*command):
    """What a command prints; "" if it fails."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def job_slots():
    """The hosts of the current batch job, each once for each of its ranks."""
    if nodes := os.environ.get("SLURM_JOB_NODELIST"):
        tasks = os.environ.get("SLURM_TASKS_PER_NODE", "")
        if not (ranks := re.fullmatch(r"(\d+)(\(x\d+\))?", tasks)):
            give_up(f"Slurm gave the nodes different numbers of ranks ({tasks}): ask with --ntasks-per-node")
        hosts = output("scontrol", "show", "hostnames", nodes).split()
        if not hosts:
            give_up(f"scontrol does not give the names of the job's nodes ({nodes}): give --hosts")
        return [host for host in hosts for _ in range(int(ranks[1]))]
    file = os.environ.get("PBS_NODEFILE") or os.environ.get("LSB_DJOB_HOSTFILE")
    try:
        return pathlib.Path(file).read_text().split() if file else []
    except OSError as error:
        give_up(f"{file}, the hosts of this job: {error.strerror}: give --hosts")


def hosts_in(file):
    """An option's type: the hosts of one of mpirun's host files, such as "a", or "a:4" with slots."""
    try:
        lines = [line.split("#")[0].split() for line in pathlib.Path(file).read_text().splitlines()]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{file}: {error.strerror}") from error
    if not any(lines):
        raise argparse.ArgumentTypeError(f"{file}: names no host")
    return [":".join([line[0], *(word[6:] for word in line if word.startswith("slots="))]) for line in lines if line]


def is_here(host):
    return host in ("localhost", socket.gethostname())


def answering(hosts, command):
    """The hosts that answer mpirun's agent, and on which a shell command succeeds."""
    agent = os.environ.get("OMPI_MCA_plm_rsh_agent", "ssh").split()
    asked = [subprocess.Popen(["sh", "-c", command] if is_here(host) else ["timeout", "5", *agent, host, command],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for host in hosts]
    return [host for host, process in zip(hosts, asked) if process.wait() == 0]


def environment_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended
        return []


def prepare_mpirun():
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until mpirun handles it, and after that: it would end mpirun


class Job:
    """mpirun, in a process group of its own, so that Ctrl-C on a terminal reaches it once, from here. `hosts`: their names;
    `survives`: ranks go on if others die; `stops_cleanly`: its ranks stop with a checkpoint on SIGUSR1."""

    def __init__(self, arguments, ranks, hosts, survives=False, stops_cleanly=False):
        self.ranks, self.hosts, self.survives, self.stops_cleanly = ranks, hosts, survives, stops_cleanly
        self.stopped = None      # the last signal received
        self.lost = 0            # ranks that died
        self.begun = False       # the job survives lost ranks from now on
        self.reported = None     # the exit status that a rank has reported
        self.reason = None       # why the job is over, if it cannot report a status
        self.dead = []
        self.early = False       # ranks were lost before the job could survive that
        self.late = 0            # looks at a job that was over
        self.next_look = self.next_hosts = self.next_request = 0.0
        self.mpirun, self.early = None, []  # signals that are received before it is there
        for number in SIGNALS:
            signal.signal(number, self.pass_on)
        descriptor, self.address = tempfile.mkstemp()  # of mpirun; it begins with the number of its job family
        os.close(descriptor)
        self.mpirun = subprocess.Popen(
            ["setpriv", "--pdeathsig", "HUP", "mpirun", "--report-uri", self.address, *arguments], stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, preexec_fn=prepare_mpirun)
        for number in self.early:
            self.pass_on(number, None)

    def pass_on(self, number, _):
        """Passes a signal on to mpirun. SIGUSR1 reaches the ranks, again and again, and they stop with a checkpoint. A second
        signal ends them."""
        if not self.mpirun:
            return self.early.append(number)
        stops = self.stops_cleanly and self.stopped not in BLOCKED
        self.stopped = number
        self.next_request = time.monotonic() + REPEATED if stops and number in (*BLOCKED, signal.SIGUSR1) else 0.0
        self.mpirun.send_signal(number if number not in BLOCKED else signal.SIGUSR1 if stops else signal.SIGHUP)

    def messages(self):
        """Yields the lines of mpirun's stderr, and looks at the job in between. Ends 2 s after mpirun: what it has started
        may keep its stderr open. A second thread would read more simply, but as launch is killed, mpirun would get a signal
        for each thread, and mpirun that gets two does not end its ranks."""
        rest, end = b"", math.inf
        while time.monotonic() < end:
            if select.select([self.mpirun.stderr], [], [], 0.2)[0]:
                if not (read := os.read(self.mpirun.stderr.fileno(), 1 << 16)):
                    break
                *lines, rest = (rest + read).split(b"\n")
                yield from (line + b"\n" for line in lines)
            if self.mpirun.poll() is None:
                self.look()
            else:
                end = min(end, time.monotonic() + 2)
        if rest:
            yield rest

    def note(self, line):
        """Takes note of a line in which the job or mpirun reports a state."""
        if report := REPORT.search(line):
            self.reported, self.lost = int(report[1]), int(report[2])
        elif BEGUN.search(line):
            self.begun = True
        elif self.reason:
            return  # the job is over, and the others are being ended
        elif (rank := RANK.search(line)) and rank[2] == "ABORTED BY SIGNAL":
            self.dead.append(f"rank {rank[1]} was lost")
        elif SILENCE.search(line):
            self.dead.append("a host was lost")
        elif rank and not self.begun and not self.dead:
            self.dead.append(f"rank {rank[1]} ended")

    def children(self):
        return output("pgrep", "-P", str(self.mpirun.pid)).split()

    def variable(self):
        """The variable that the ranks of this job have in their environment. None if it is not known yet."""
        try:
            family = pathlib.Path(self.address).read_text().split(".")[0]
        except OSError:  # Open MPI 5 removes it
            return None
        return f"PMIX_NAMESPACE={int(family) + 1}" if family.isdigit() else None

    def hosts_with_ranks(self):
        return answering(self.hosts, f"grep -qsxz {self.variable()} /proc/[0-9]*/environ")

    def is_over(self):
        """Whether mpirun has nothing left to wait for, although it waits. Sets `reason` if the job cannot report a status."""
        if self.reported is not None or self.reason:
            return True
        if not self.begun and self.dead:  # the others wait for it, in MPI_Init
            self.reason = f"{self.dead[0]} before the job could survive this"
            self.early = self.dead[0].endswith("lost")
            return True
        # mpirun may not notice that no rank is left, or only after many minutes: if this host is cut off, for example.
        suspicious = self.dead or any(map(is_here, self.hosts))  # unless it has a rank
        if not self.begun or not suspicious or time.monotonic() < self.next_hosts:
            return False
        self.next_hosts = time.monotonic() + 5
        own = any(word.startswith("OMPI_COMM_WORLD_RANK=") for child in self.children() for word in environment_of(child))
        if own or not all(map(is_here, self.hosts_with_ranks())):
            return False
        self.reason = NO_RANK_LEFT
        return True

    def end_orphans(self):
        """Ends the ranks that a killed mpirun has left here: those on other hosts end when its daemons there miss it."""
        if not (variable := self.variable()):
            return
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            if variable in environment_of(process.name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
        for _ in range(20):
            if not self.hosts_with_ranks():
                break
            time.sleep(1)

    def remove_files(self):
        """Removes the files in /dev/shm that killed ranks of this job have left on this host."""
        if variable := self.variable():
            for file in pathlib.Path("/dev/shm").glob(f"vader_segment.*.{int(variable.split('=')[1]):x}.*"):
                with contextlib.suppress(FileNotFoundError):
                    if file.lstat().st_uid == os.getuid():
                        file.unlink()
        pathlib.Path(self.address).unlink(missing_ok=True)

    def look(self):
        """Repeats a request to stop. If mpirun does not end after the job, it gets 2 s, and is killed after 2 more."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + 0.2
        self.late += self.is_over()
        if self.next_request and time.monotonic() > self.next_request:
            self.mpirun.send_signal(signal.SIGUSR1)
            self.next_request += REPEATED
        if self.late == 10:
            self.mpirun.send_signal(signal.SIGHUP)
        elif self.late == 20:
            subprocess.run(["pkill", "-KILL", "-P", str(self.mpirun.pid)], check=False)
            self.mpirun.kill()

    def await_end(self):
        """Passes mpirun's messages on. Returns the exit status of mpirun."""
        for line in shown(self.messages(), self.survives, self.note):
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.write(sys.stderr.fileno(), line)
        while self.mpirun.poll() is None:
            time.sleep(0.2)
            self.look()
        status = self.mpirun.returncode
        if self.survives and status < 0 and not self.late and not self.stopped and self.reported is None:
            self.reason = f"mpirun was killed (signal {-status})"
            self.end_orphans()
        self.remove_files()
        return status if status >= 0 else 128 - status

    def run(self):
        """Returns the exit status of ranks that end with mpirun."""
        status = self.await_end()
        interrupted = self.stopped in (signal.SIGINT, signal.SIGTERM) and status not in (0, STOPPED, TAKEN_OVER)
        return 128 + self.stopped if interrupted else status

    def supervise(self):
        """Returns the exit status of ranks that survive others: mpirun's is 0 then, whatever theirs are, and it does not end
        after it has lost a host, nor if a rank ends before or in MPI_Init. `lost` is all ranks if nothing is known."""
        status = self.await_end()
        # mpirun itself may end after a lost host, if none of its ranks are left.
        if self.begun and status == 0 and self.reported is None and not self.reason and "a host was lost" in self.dead:
            self.reason = NO_RANK_LEFT
        if self.stopped in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and self.reported not in (STOPPED, 0):
            self.reported = 128 + self.stopped
        if self.reported is not None:
            return self.reported
        if self.reason:
            print(f"launch: {self.reason}: the job ends", file=sys.stderr)
            self.lost = len(self.dead) or self.ranks
            return 1 if self.dead and self.dead[0].endswith("ended") else STOPPED  # it would end again if it were requeued
        self.lost = self.ranks if status == 0 else self.lost
        return status or 1
