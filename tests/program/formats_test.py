"""scripts/formats: accepted by the tools that they are for, if these are installed."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

import helper

FORMATS = helper.pathlib.Path(__file__).resolve().parents[2] / "scripts/formats"


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"{program} is not installed")


class Formats(helper.ProgramTest):
    def run_tool(self, *command):
        done = subprocess.run(list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=helper.TIMEOUT,
                              stdin=subprocess.DEVNULL,
                              env={**os.environ, **helper.ENVIRONMENT, "ANNULUS": str(helper.ANNULUS), "RFM_PREFIX": str(self.folder)})
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @needs("reframe")
    def test_reframe_runs_the_tests(self):
        shown = self.run_tool("reframe", "-c", FORMATS / "reframe_annulus.py", "-r", "-S", "seconds=0.1", "-S", "batch=4", "-S",
                              f"AnnulusTraining.data={self.data}", "--nocolor")
        for name in ("AnnulusStep", "AnnulusTraining"):
            self.assertRegex(shown, rf"OK *\] .*{name} ")
        self.assertRegex(shown, r"P: speed: [\d.]+ images/s")
        self.assertRegex(shown, r"P: accuracy: [\d.]+")

    def test_an_mlperf_log(self):
        out = self.folder / "run"
        self.succeed("train", "--data", self.data, "--model", "mlp", "--epochs", 2, "--until", "loss=100", "--out", out)
        done = subprocess.run([FORMATS / "mllog.py", out, "--benchmark", "resnet", "--org", "us", "--platform", "here",
                               "--train-samples", "200"], capture_output=True, text=True, check=True)
        events = [json.loads(line.removeprefix(":::MLLOG ")) for line in done.stdout.splitlines()]
        self.assertEqual([event["time_ms"] for event in events], sorted(event["time_ms"] for event in events))
        results = json.loads((out / "results.json").read_text())
        by_key = {event["key"]: event for event in events}
        self.assertEqual(by_key["eval_accuracy"]["value"], results["evaluations"][0]["test_accuracy"])
        self.assertEqual(by_key["run_stop"]["metadata"], {"status": "success"})
        seconds = results["epochs"][0]["seconds"] + results["evaluations"][0]["seconds"]
        self.assertAlmostEqual(by_key["run_stop"]["time_ms"] - by_key["run_start"]["time_ms"], 1e3 * seconds, delta=1)
        (out / "results.json").write_text("{}")
        done = subprocess.run([FORMATS / "mllog.py", out, "--benchmark", "resnet", "--org", "us", "--platform", "here",
                               "--train-samples", "200"], capture_output=True, text=True)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), str(done))
        if not importlib.util.find_spec("mlperf_logging"):
            self.skipTest("mlperf-logging is not installed: its compliance checker is not run")
        by_key["eval_accuracy"]["value"] = 0.9  # the checker refuses 1, which this data may reach
        file = self.folder / "result_0.txt"
        file.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
        shown = self.run_tool(sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0", file)
        self.assertNotIn("FAIL", shown)

    @needs("jube")
    def test_jube_runs_the_steps(self):
        self.run_tool("jube", "run", "--hide-animation", "-o", self.folder / "out", FORMATS / "jube.yaml")
        shown = self.run_tool("jube", "result", self.folder / "out")
        self.assertRegex(shown, r"\| +2 \| lenet \| +64 \| +[\d.]+ \| +[\d.e-]+ \|")  # images/s and seconds on two ranks
        self.assertRegex(shown, r"\| +2 \| +[\d.]+ \|")                            # busbw


if __name__ == "__main__":
    helper.main()
