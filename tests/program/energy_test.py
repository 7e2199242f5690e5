"""The power that scripts/study reads from the program, Slurm and a watt-meter."""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest.mock

import helper

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts/peers"))
from scaling import energy  # noqa: E402


class Power(unittest.TestCase):
    """What scripts/study takes for a measurement's power."""
    BEGIN = 1767225600  # 2026-01-01T00:00:00 UTC

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.measured = {"began": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:00+00:00",
                         "result": {"rows": [{"energy": {"joules_per_step": 100}, "ledger": {"steps": 5, "wall": 10}}]}}

    def meter(self, lines):
        file = self.folder / "meter.csv"
        file.write_text("".join(f"{line}\n" for line in lines))
        return energy.Meter(file)

    def test_the_first_source_that_all_repeats_have(self):
        counted = {**self.measured, "sacct": {"joules": 9000, "seconds": 60}}
        self.assertEqual(energy.power_of([counted, counted])["source"], "sacct ConsumedEnergy")
        self.assertEqual(energy.power_of([counted, counted])["median"], 150)
        found = energy.power_of([counted, self.measured])
        self.assertEqual((found["median"], found["source"]), (50, "the program's counters"))
        self.assertIsNone(energy.power_of([{**self.measured, "result": {"rows": [{"energy": "unknown", "ledger": {}}]}}, self.measured]))
        self.assertIsNone(energy.power_of([{**self.measured, "result": {"rows": [{"ledger": {}}]}}]))

    def test_a_watt_meter(self):
        meter = self.meter(["time,watts", *(f"{self.BEGIN + second},{100 + second}" for second in range(-10, 80, 5))])
        found = energy.power_of([self.measured], meter)
        self.assertEqual((found["median"], found["source"]), (130, "watt-meter"))
        self.assertEqual(meter.joules(self.BEGIN + 1, self.BEGIN + 3), 204)  # between two samples
        meter = self.meter(["2026-01-01T00:00:00Z,7", "2026-01-01 00:00:08,7", "2026-01-01T01:00:16+01:00,7"])
        self.assertEqual(meter.joules(self.BEGIN, self.BEGIN + 16), 112)
        for seconds in ([*range(0, 30, 5), *range(45, 65, 5)], range(0, 60, 5), range(5, 70, 5)):  # a gap; too short
            self.assertEqual(energy.power_of([self.measured], self.meter(f"{self.BEGIN + s},1" for s in seconds))["median"], 50)
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as shown:
            self.meter(["time,watts", "1,2", "now,3"])
        self.assertIn("line 3 is not a time and watts: now,3", shown.getvalue())

    def test_sacct(self):
        program = self.folder / "sacct"
        program.touch(0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}):
            for lines, expected in (("7|1000|90\n7.batch|1000|90\n7.0|100|20\n7.12|4000|20\n7.2|300|20", {"joules": 4000, "seconds": 20}),
                                    ("7.0|0|20", None), ("7.0||20", None), ("7.0|4000|3", None), ("7.batch|9|20", None), ("", None)):
                program.write_text(f"#!/bin/sh\ncat << END\n{lines}\nEND\n")
                self.assertEqual(energy.read_sacct(), expected)
            program.write_text("#!/bin/sh\nexit 1\n")
            self.assertIsNone(energy.read_sacct())


if __name__ == "__main__":
    helper.main()
