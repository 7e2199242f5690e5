"""scripts/study --proposal: a folder to attach to an application for computing time."""
import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import helper
from study_test import DRAWS, NETWORK, SCRIPT, study

FACTS = ["--target", "target.json", "--price-per-node-hour", 2, "--price-per-kwh", 0.5, "--watts-per-node", 500]


class Proposal(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.measured = cls.shared / "proposal"
        cls.command = ["--program", helper.ANNULUS, "--ranks", "1,2", "--model", "mlp", "--batch", 8, "--repeat", 1, "--seconds", 0.1,
                       "--threads", 1, "--sizes", "4KiB,64KiB"]
        if DRAWS:
            result = study(*cls.command, "--proposal", cls.measured)
            assert result.status == 0, str(result)

    def setUp(self):
        super().setUp()
        self.out = self.folder / "proposal"
        if DRAWS:
            shutil.copytree(self.measured, self.out)
        # 10,000 samples with a batch of 8, and a gradient noise of 24: (8 N + 24) / 32 times as many with N times the batch.
        self.target = self.folder / "target.json"
        self.target.write_text(json.dumps({"global_batch": 8, "ended_by": "accuracy=0.9", "evaluations": [{"step": 1250}],
                                           "gradient_noise": {"scale": 24}}))

    def rewrite(self, change):
        for file in self.out.glob("*/raw/*.json"):
            measurement = json.loads(file.read_text())
            change(measurement)
            file.write_text(json.dumps(measurement))

    def as_nodes(self, m):
        """Ranks on a node each. A step of one rank takes 2 s, of two 2.5 s with weak and 1.25 s with strong scaling."""
        m.update(nodes=m["ranks"], ranks_per_node=1)
        if m["kind"] == "step":
            for row in m["result"]["rows"]:
                row["median_seconds"] = {("weak", 1): 2, ("weak", 2): 2.5, ("strong", 1): 2, ("strong", 2): 1.25}[
                    m["settings"]["scaling"], m["ranks"]]
                row["compute_seconds"] = 0.9 * row["median_seconds"]
                row["images_per_second"] = row["batch"] * m["ranks"] / row["median_seconds"]

    def test_a_dry_run_shows_job_scripts_and_node_hours(self):
        out = self.folder / "new"
        nodes = [*self.command[:2], "--nodes", "1,4", "--ranks-per-node", 2, *self.command[4:], "--seconds", 36, "--repeat", 3]
        result = study(*nodes, "--proposal", out, "--dry-run", "--slurm=--account=me", "--", "--bucket", "64KiB")
        self.assertEqual((result.status, out.exists()), (0, False), str(result))
        # Of 1, 2 and 8 ranks: steps 46 + 2 * 82 s, all-reduces 2 * (10 + 2 * 3 * 3.6) s, the network of 4 nodes 10 + 2 * 3.6 s.
        hours = 4 * 3 * (46 + 2 * 82 + 2 * (10 + 21.6) + 17.2) / 3600
        self.assertIn(f"weak: 0 of 18 measurements are complete; the other 18 need about {hours:.2f} node hours", result.out)
        self.assertIn(f"In all about {2 * hours:.2f} node hours, in a job of 4 nodes", result.out)
        for line in ("#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=2", "#SBATCH --array=1-3", "#PBS -l select=4:ncpus=2:mpiprocs=2",
                     "#PBS -J 1-3", "#BSUB -n 8", '#BSUB -J "study[1-3]"'):
            self.assertIn(line, result.out.splitlines())
        self.assertRegex(result.out, r"--repeat 3 .*--round \$LSB_JOBINDEX -- --bucket 64KiB\n")
        self.assertNotIn("account", result.out.split("---")[1])
        scripts = re.findall(r"(#!/bin/bash\n.*?\nexec .*?\n)", result.out, re.DOTALL)
        self.assertEqual(len(scripts), 6)
        for script in scripts:
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    def test_options_that_do_not_belong_together(self):
        out = ["--proposal", self.out]
        for wrong, words in (([*self.command, *out, "--out", self.out], "--out or --proposal"), (self.command, "--out or --proposal"),
                             ([*self.command[:2], *self.command[4:], *out], "--ranks"),
                             ([*self.command, *out, "--nodes", 2], "--ranks-per-node"),
                             ([*self.command, "--weak", "--out", self.out, "--target", self.target], "belong to --proposal")):
            result = study(*wrong)
            self.assertEqual(result.status, 2, str(result))
            self.assertIn(words, result.err)
        modules = self.folder / "modules"
        modules.mkdir()
        (modules / "sitecustomize.py").write_text("import importlib.util\nimportlib.util.find_spec = lambda name: None\n")
        result = study(*self.command, "--proposal", self.folder / "none", modules=modules)
        self.assertIn("has no matplotlib: install Debian's python3-matplotlib", result.err)
        self.assertFalse((self.folder / "none").exists())
        result = study(*self.command, *out, "--ranks-per-node", 1)
        self.assertIn("2 ranks are 2 nodes of 1, and there is 1 node here", result.err)

    @helper.unittest.skipUnless(DRAWS, "no matplotlib")
    def test_the_folder_is_whole(self):
        text = (self.out / "report.md").read_text()
        for words in ("## Weak scaling: 8 images per rank", "## Strong scaling: 16 images in total", "### What this cannot know",
                      "The curve ends at 2 ranks", "E(N) = S(N) / (N S(1))", "E(N) = T(1) / (N T(N))", "![weak-ledger](weak-ledger.svg)"):
            self.assertIn(words, text)
        page = (self.out / "report.html").read_text()
        self.assertEqual(page.count("<svg"), len(list(self.out.glob("*.svg"))))
        self.assertNotRegex(page, r"<(link|script|img)|url\(http")
        rows = list(csv.DictReader((self.out / "data.csv").read_text().splitlines()))
        self.assertEqual(len(rows), 2 * (2 + 3 * 2))  # steps of 1 and 2 ranks; 3 algorithms with 2 sizes
        for row in rows:
            if row["kind"] == "step":
                self.assertAlmostEqual(float(row["global batch (samples)"]) / float(row["median step (s)"]),
                                       float(row["speed (images/s or tokens/s)"]), delta=1)
        self.assertEqual((self.out / "commands.txt").read_text().count("annulus bench "), 6)
        self.assertIn("Open MPI", (self.out / "doctor.txt").read_text())
        readme = (self.out / "README.md").read_text()
        self.assertIn("The first 4 to 8 steps of each measurement are left out.", readme)
        self.assertRegex(readme, r"scripts/study run .*--proposal ")

    @helper.unittest.skipUnless(DRAWS and importlib.util.find_spec("pandas"), "no pandas")
    def test_the_example_for_pandas(self):
        example, = re.findall(r"```python\n(.*?)```", (SCRIPT.parent / "scaling/README.md").read_text(), re.DOTALL)
        shown = subprocess.run([sys.executable, "-c", example.replace("build/proposal", str(self.out))], cwd=self.folder,
                               env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, str(shown))
        self.assertRegex(shown.stdout, r"scaling +strong +weak\nranks +\n1 +1\.0+ +1\.0+\n2 +0?\.?\d")
        self.assertGreater((self.folder / "efficiency.png").stat().st_size, 1000)

    @helper.unittest.skipUnless(DRAWS, "no matplotlib")
    def test_nodes_hours_energy_and_cost(self):
        self.rewrite(self.as_nodes)
        hosts = self.folder / "hosts"
        hosts.write_text("a\nb\n")
        facts = [self.target if word == "target.json" else word for word in FACTS]
        result = study(*self.command, "--proposal", self.out, "--hosts-file", hosts, "--ranks-per-node", 1, *NETWORK, *facts)
        self.assertEqual(result.status, 0, str(result))
        text = (self.out / "report.md").read_text()
        self.assertIn("| 2 | 2 | 8 | 16 | 6.40 | 2500 | 1.60 | 80.0 % |".replace("2500", "2,500"), text)   # weak
        self.assertIn("| 2 | 2 | 8 | 16 | 12.80 | 1,250 | 1.60 | 80.0 % |", text)                           # strong
        # 10,000 samples at 4 images/s: 0.694 hours on a node, which are 0.347 kWh and cost 2 * 0.694 + 0.5 * 0.347.
        self.assertIn("| 1 | 0.694 | 0.694 | 0.347 | 1.56 | measured speed |", text)
        # 12,500 at 6.4 images/s on two.
        self.assertIn("| 2 | 0.543 | 1.09 | 0.543 | 2.44 | measured speed |", text)
        self.assertIn("| 4096 (extrapolated) | 4096 | 32768 |", text)
        # Of the speed relative to N times a node's, as for measured nodes.
        for one, part in zip((4, 8), text.split("## Strong scaling"), strict=True):
            for count, speed, efficiency in re.findall(r"\| (\d+) \(extrapolated\) .* \| ([\d,.]+) \[.*\| ([\d.]+) % \[", part):
                expected = min(100, 100 * float(speed.replace(",", "")) / (int(count) * one))
                self.assertAlmostEqual(float(efficiency), expected, delta=0.1)
        self.assertIn("given: --latency and --bandwidth", text)
        self.assertIn("extrapolated speed |", text)

    @helper.unittest.skipUnless(DRAWS, "no matplotlib")
    def test_measured_energy(self):
        def with_power(m):
            self.as_nodes(m)
            if m["kind"] == "step":
                for row in m["result"]["rows"]:
                    row["energy"] = {"joules_per_step": 200 * m["ranks"] * row["ledger"]["wall"] / row["ledger"]["steps"]}
        self.rewrite(with_power)
        hosts = self.folder / "hosts"
        hosts.write_text("a\nb\n")
        result = study(*self.command, "--proposal", self.out, "--hosts-file", hosts, "--ranks-per-node", 1, *NETWORK, "--target",
                       self.target, "--price-per-kwh", 2)
        self.assertEqual(result.status, 0, str(result))
        text = (self.out / "report.md").read_text()
        self.assertIn("| 1 | 0.694 | 0.694 | 0.139 | 0.278 | measured speed |", text)
        self.assertIn("| 2 | 0.543 | 1.09 | 0.217 | 0.434 | measured speed |", text)
        self.assertNotRegex(text, r"\| unknown \| extrapolated")  # nodes beyond take the power of measured ones
        self.assertIn("Power of all nodes together (the program's counters)", text)
        row = re.search(r"\| 2 \| 400(?: \[.*?\])? \| 1e\+03 \| 62.5 \| (.*) \|", text).group(1)  # of 2.5 s
        self.assertAlmostEqual(sum(float(joules) for joules in row.split(" | ")), 1000, delta=50)
        rows = list(csv.DictReader((self.out / "data.csv").read_text().splitlines()))
        for row in rows:
            if row["kind"] == "step":
                self.assertAlmostEqual(float(row["power of all nodes (W)"]), 200 * int(row["ranks"]))

    @helper.unittest.skipUnless(DRAWS, "no matplotlib")
    def test_missing_points_are_listed_and_continued(self):
        file = self.out / "weak/raw/step-2-ranks-1.json"
        file.unlink()
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "mpirun").write_text("#!/bin/sh\nexit 3\n")
        (programs / "mpirun").chmod(0o755)
        result = study(*self.command, "--weak", "--proposal", self.out, path=programs)
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("not measured: weak: step, 2 ranks, repeat 1", result.err)
        for name in ("README.md", "report.md"):
            self.assertIn("weak: step, 2 ranks, repeat 1", (self.out / name).read_text())
        self.assertIn("weak: 2 of 3 measurements are complete", study(*self.command, "--weak", "--proposal", self.out, "--dry-run").out)
        result = study(*self.command, "--weak", "--proposal", self.out)
        self.assertEqual((result.status, file.exists()), (0, True), str(result))
        self.assertNotIn("Not measured yet", (self.out / "README.md").read_text())


if __name__ == "__main__":
    helper.main()
