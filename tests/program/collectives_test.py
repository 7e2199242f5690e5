"""The library of collectives if a rank stops, or if there is little shared memory."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import unittest

import helper
from shared_memory_test import MESSAGES, space

EXAMPLE = pathlib.Path(helper.ANNULUS).parent / "tests/collectives_example"
FAULT = pathlib.Path(helper.ANNULUS).parent / "tests/collectives_fault"
HOST = re.escape(socket.gethostname())
TIMEOUT, LOST = 4, 5  # annulus_status
OPERATION = r"operation 11, all-reduce of 100000 fp32 \(sum\)"


class Faults(unittest.TestCase):
    """The other ranks end within the timeout, and name the rank."""

    def reports(self, kind, timeout, ranks_per_node=0, ranks=3):
        """Each other rank's status, seconds and text, after rank 1 has stopped."""
        line = [helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-np", ranks,
                FAULT, kind, timeout, ranks_per_node]
        process = helper.start_command([str(word) for word in line])
        self.addCleanup(lambda: process.poll() is None and helper.kill(process))
        lines = []
        while len(lines) < ranks:
            text = process.stdout.readline()
            self.assertTrue(text, f"only {lines}; {process.stderr.read() if process.poll() is not None else ''}")
            lines.append(text)
        stopped = next(int(found[1]) for text in lines if (found := re.match(r"stopped (\d+)$", text)))
        if kind != "kill":
            os.kill(stopped, signal.SIGKILL)
        process.communicate(timeout=60)
        return stopped, [(int(found[1]), float(found[2]), found[3]) for text in lines
                         if (found := re.match(r"rank \d+: status (\d+) after (\S+) s: (.*)$", text))]

    def check(self, reports, status, seconds, text):
        self.assertEqual([report[0] for report in reports], [status] * len(reports), reports)
        for _, took, shown in reports:
            self.assertLess(took, seconds, reports)
            self.assertRegex(shown, f"^{text}$")

    def test_a_killed_rank_is_noticed_immediately(self):
        process, reports = self.reports("kill", 100)
        self.check(reports, LOST, 20, rf"rank 1 on {HOST} \(process {process}\) has ended in {OPERATION}, waiting for rank 1 on {HOST}")

    def test_a_frozen_rank_is_named_after_the_timeout(self):
        _, reports = self.reports("freeze", 4)
        self.check(reports, TIMEOUT, 20, rf"no progress for 4 s in {OPERATION}, waiting for rank 1 on {HOST}")

    def test_a_rank_that_does_not_call_is_named_after_the_timeout(self):
        for ranks_per_node in (0, 1):
            with self.subTest(ranks_per_node=ranks_per_node):
                _, reports = self.reports("absent", 3, ranks_per_node)
                self.check(reports, TIMEOUT, 20, rf"no progress for 3 s in {OPERATION}(, waiting for rank \d on {HOST})?")

    def test_an_allocation_ends_after_the_timeout(self):
        _, reports = self.reports("allocate", 3)
        self.check(reports, TIMEOUT, 20, "no progress for 3 s in the allocation of 1000 bytes")


@unittest.skipIf(subprocess.run([*space("1m"), "true"], stderr=subprocess.DEVNULL).returncode, "no file systems can be mounted here")
class SmallSharedMemory(unittest.TestCase):
    def test_ranks_send_messages_or_copy_arrays(self):
        """The example's arrays need 8 MB; 4 MB are enough to copy them in pieces."""
        for size, algorithm in (("100k", r"float32 sums: ring over MPI messages"), ("4m", r"shared memory \(all ranks are on one node\)")):
            with self.subTest(size):
                result = helper.finish(helper.start_command(
                    [*space(size), helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2", str(EXAMPLE)], MESSAGES))
                self.assertEqual(result.status, 0, str(result))
                self.assertRegex(result.out, f"^average of 2 ranks: 0.5; {algorithm}")


if __name__ == "__main__":
    unittest.main()
