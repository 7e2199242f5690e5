"""scripts/formats: accepted by the tools that they are for, if these are installed."""
import os
import shutil
import subprocess
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

    @needs("jube")
    def test_jube_runs_the_steps(self):
        self.run_tool("jube", "run", "--hide-animation", "-o", self.folder / "out", FORMATS / "jube.yaml")
        shown = self.run_tool("jube", "result", self.folder / "out")
        self.assertRegex(shown, r"\| +2 \| lenet \| +64 \| +[\d.]+ \| +[\d.e-]+ \|")  # images/s and seconds on two ranks
        self.assertRegex(shown, r"\| +2 \| +[\d.]+ \|")                            # busbw


if __name__ == "__main__":
    helper.main()
