"""Every script answers --help, and does nothing else."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Help(unittest.TestCase):
    def test_help_is_all_that_a_script_does(self):
        """In a folder that a script takes for the repository, if it looks from its own place."""
        scripts = sorted(file.name for file in SCRIPTS.iterdir() if file.is_file() and os.access(file, os.X_OK))
        self.assertIn("launch", scripts)
        for name in scripts:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                here = pathlib.Path(folder, "here")
                here.mkdir()
                pathlib.Path(folder, "scripts").symlink_to(SCRIPTS)
                done = subprocess.run([f"{folder}/scripts/{name}", "--help"], cwd=here, stdin=subprocess.DEVNULL, text=True,
                                      capture_output=True, timeout=30, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, r"(?m)^[Uu]sage: ")
                self.assertEqual(sorted(file.name for file in pathlib.Path(folder).rglob("*")), ["here", "scripts"])

    def test_batch_scripts_have_help_outside_of_jobs(self):
        for script, command in (("slurm/train.sbatch", "sbatch"), ("pbs/train.pbs", "qsub"), ("lsf/train.lsf", "bsub")):
            with self.subTest(script):
                done = subprocess.run(["bash", SCRIPTS / script, "--help"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, rf"^Trains in .*\n(.*\n)*  {command} .*{script}")
                self.assertNotIn("#", done.stdout)


if __name__ == "__main__":
    unittest.main()
