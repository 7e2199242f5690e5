"""The lines that mpirun writes to stderr: which ones report a state of the job, and which ones the user sees."""
import re

NOISE = re.compile(r"ORTE_ERROR_LOG: .*show_help\.c|PMIX ERROR: BAD-PARAM in file .*event_notification\.c|mpirun: Forwarding signal 10 ")
# Lines in which a job (src/job/job_status.cpp) and mpirun (state_base_verbose) report their state.
REPORT = re.compile(r"annulus: the job ends with status (\d+), ranks lost: (\d+)$")
BEGUN = re.compile(r"annulus: the job survives lost ranks$")
STATE = re.compile(r"\[.*\] \[\[\d*,0\],\d*\] ACTIVATE ")
# mpirun has the same line for a rank that ended, with any exit status, and for one whose program could not be started.
RANK = re.compile(r"\[\[\d+,1\],(\d+)\] STATE (ABORTED BY SIGNAL|NORMALLY TERMINATED)")
SILENCE = re.compile(r"\[\[\d+,0\],\d+\] STATE COMMUNICATION FAILURE")
# mpirun's boxes, between lines of dashes.
ENDED = re.compile(r"MPI_ABORT was invoked|Primary job  terminated normally|mpirun detected that one or more processes exited|"
                   r"mpirun noticed that process rank \d+ .* signal 10 ")  # which asks a rank to stop before it can
SURVIVED = re.compile(r"An MPI communication peer process has|WARNING: Open MPI failed to TCP connect")


def shown(lines, survives, note):
    """Yields the lines of mpirun's stderr, except the boxes about MPI_Abort and about exit statuses of ours, since the rank
    that ended has reported the reason, and those about ranks that others survive. Lines that report a state go to `note`."""
    box = []
    for line in lines:
        text = line.decode(errors="replace").rstrip("\n")
        if NOISE.search(text):
            continue
        if REPORT.search(text) or BEGUN.search(text) or STATE.match(text):
            note(text)
            continue
        box.append(line)
        dashes = re.fullmatch("-{70,}", text)
        if len(box) == 2 and dashes:  # the end of a box, and the beginning of the next
            yield box.pop(0)
        elif len(box) == 2 and not ENDED.match(text) and not (survives and SURVIVED.match(text)) or len(box) == 1 and not dashes:
            yield from box
            box = []
        elif len(box) > 2 and dashes:
            if box[1].startswith(b"mpirun detected") and not re.search(rb"Exit code: *(1|2|75|76)\n", b"".join(box)):
                yield from box
            box = []
    yield from box
