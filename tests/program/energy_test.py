"""Energy: counters in recorded trees, and the power that scripts/study reads from the program, Slurm and a watt-meter."""
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest.mock

import helper

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts/peers"))
from scaling import energy  # noqa: E402


class Machine:
    """A tree like /sys, in which counters grow while this is open. Files are replaced, so that none is read half-written."""

    def __init__(self, folder, watts, period):
        self.folder, self.watts, self.period = pathlib.Path(folder), watts, period
        self.ended = threading.Event()

    def __enter__(self):
        self.begun = time.monotonic()
        self.write(self.constants())
        self.write(self.counters(0))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def run(self):
        while not self.ended.wait(self.period):
            self.write(self.counters(time.monotonic() - self.begun))

    def write(self, files):
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "new").write_text(f"{text}\n")
            (file.parent / "new").replace(file)


class Cray(Machine):
    """Changes ten times a second, as the real one does."""
    PERIOD = 0.1

    def __init__(self, folder, watts, stamped):
        super().__init__(folder, watts, self.PERIOD)
        self.stamped = stamped

    def constants(self):
        return {}

    def counters(self, seconds):
        stamp = f" {1475578513543190 + int(1e6 * seconds)} us" if self.stamped else ""
        return {"cray/pm_counters/energy": f"{25432 + int(self.watts * seconds)} J{stamp}"}


class Rapl(Machine):
    """Two packages of half of the power each, the second of which restarts after every 400 J."""
    RANGES = [10**12, 400_000_000]
    PERIOD = 0.002

    def __init__(self, folder, watts):
        super().__init__(folder, watts, self.PERIOD)

    def constants(self):
        return {f"class/powercap/intel-rapl:{package}/{name}": text for package, most in enumerate(self.RANGES)
                for name, text in (("name", f"package-{package}"), ("max_energy_range_uj", most))}

    def counters(self, seconds):
        return {f"class/powercap/intel-rapl:{package}/energy_uj": int(0.5e6 * self.watts * seconds) % most
                for package, most in enumerate(self.RANGES)}


class Counters(helper.ProgramTest):
    WATTS = 400

    def check(self, row, source):
        energy, ledger = row["energy"], row["ledger"]
        self.assertIsInstance(energy, dict)
        self.assertEqual(energy["source"], source)
        joules = sum(ledger["joules"].values())
        self.assertAlmostEqual(joules, energy["joules_per_step"] * ledger["steps"], delta=1e-6 * joules)
        self.assertAlmostEqual(joules, self.WATTS * ledger["wall"], delta=0.05 * self.WATTS * ledger["wall"])
        for part, of_part in ledger["joules"].items():
            self.assertAlmostEqual(of_part, joules * ledger[part] / ledger["wall"], delta=1e-6 * joules)

    def test_the_columns_of_the_ledger_add_up_to_the_counter(self):
        """A machine that ranks share is counted once."""
        for ranks, kind, source in ((0, Rapl, "RAPL"), (2, Rapl, "RAPL"), (2, lambda *a: Cray(*a, stamped=True), "pm_counters"),
                                    (2, lambda *a: Cray(*a, stamped=False), "pm_counters")):
            with self.subTest(ranks=ranks, source=source), tempfile.TemporaryDirectory() as folder:
                with kind(folder, self.WATTS) as machine:
                    environment = {"ANNULUS_SYSFS": str(machine.folder)}
                    results = self.train(pathlib.Path(folder) / "out", ranks=ranks, model="resnet20", epochs=8, batch=10, environment=environment)
                self.check(results, source)
                kilojoules = 3600 * results["energy"]["kilowatt_hours"]
                self.assertGreater(1e3 * kilojoules, 0.95 * sum(results["ledger"]["joules"].values()))
                self.assertLess(1e3 * kilojoules, 1.05 * self.WATTS * results["total_seconds"])

    def test_bench_step(self):
        """Its turns are too short for a counter that changes ten times a second, unless the machine is idle."""
        with Rapl(self.folder, self.WATTS) as machine:
            self.succeed("bench", "step", "--model", "lenet", "--batch", 8, "--seconds", 2, "--threads", 1, "--all-reduce", "auto",
                         "--json", self.folder / "bench.json", ranks=2, environment={"ANNULUS_SYSFS": str(machine.folder)})
        self.check(json.loads((self.folder / "bench.json").read_text())["rows"][0], "RAPL")

    def test_the_line_of_a_run(self):
        with Rapl(self.folder, self.WATTS) as machine:
            result = self.succeed(*self.training(self.folder / "out", model="resnet20", batch=10),
                                  environment={"ANNULUS_SYSFS": str(machine.folder)})
        self.assertRegex(result.out, r"energy of the processors: [\d.]+ J a step, [\de.-]+ kWh in all \(RAPL\)")
        self.assertRegex(result.out, r"compute +[\d.]+ ms +[\d.]+ % +[\d.]+ J")

    def test_doctor_names_the_counter_or_the_reason(self):
        environment = {"ANNULUS_SYSFS": str(self.folder)}
        self.assertIn(f"energy        unknown: {self.folder}/class/powercap: no RAPL counters", self.succeed("doctor", environment=environment).out)
        with Rapl(self.folder, self.WATTS):
            self.assertIn("energy        of the processors, counted by RAPL", self.succeed("doctor", environment=environment).out)
        with Cray(self.folder, self.WATTS, stamped=True):
            self.assertIn("energy        of the nodes, counted by pm_counters", self.succeed("doctor", environment=environment).out)


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
