"""scripts/gpu-check: its reports, with the program on an emulated GPU (ANNULUS) and stand-ins for the others."""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time

import helper

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu-check"
sys.path.insert(0, str(SCRIPT.parent / "peers"))
import checks

PASSES = "echo 'All tests passed (3 assertions in 2 test cases)'"
DOCTOR = "echo 'usable here'; echo '  cuda          yes: a GPU'"

# Output of scripts/peers/torch_gpu.py and all_reduce_torch.py: 1000 images/s, and all-reduces of 1 ms.
PYTORCH = f"""#!{sys.executable}
import json, sys
script, *arguments = sys.argv[1:]
if script.endswith("all_reduce_torch.py"):
    name, sizes, seconds, ranks, device = arguments
    for size in sizes.split(","):
        print(json.dumps({{"algorithm": name, "bytes": int(size), "ranks": int(ranks), "median_seconds": 1e-3}}))
elif arguments[0] == "facts":
    print(json.dumps({{"pytorch": "2.0"}}))
elif "compile" in arguments:
    print(json.dumps({{"error": "no compiler"}}))
else:
    print(json.dumps({{"ready_seconds": 1}}), flush=True)
    for line in sys.stdin:
        print(json.dumps({{"median_seconds": 0.004, "images_per_second": 1000}}), flush=True)
"""


class GpuCheck(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.programs, self.out = self.folder / "programs", self.folder / "out"
        self.programs.mkdir()

    def stand_in(self, name, text):
        """A shell script with this `text`."""
        file = self.programs / name
        file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def take_annulus(self):
        (self.programs / "annulus").symlink_to(helper.ANNULUS)

    def check(self, *arguments, status=0):
        """The report, and its checks by name."""
        run = subprocess.run(
            [sys.executable, SCRIPT, "--quick", "--no-build", "--build", self.programs, "--out", self.out, "--mpirun",
             helper.MPIRUN, *map(str, arguments)], capture_output=True, text=True, timeout=200,
            env={**os.environ, **helper.ENVIRONMENT, "PATH": f"{self.programs}:{os.environ['PATH']}"})
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        self.printed = run.stdout
        report = json.loads((self.out / "report.json").read_text())
        self.markdown = (self.out / "report.md").read_text()
        return report, {check["name"]: check for check in report["checks"]}

    def assert_status(self, check, status, reason=""):
        self.assertEqual(check["status"], status, check)
        self.assertIn(reason, check["reason"] or "")

    def test_all_checks(self):
        self.take_annulus()
        self.stand_in("annulus_unit_tests", f'[ "$ANNULUS_TEST_DEVICE" = cuda ] && {PASSES}')
        self.stand_in("annulus_gpu_tests", PASSES)
        self.stand_in("annulus_gpu_mpi_device_tests", f'[ "$OMPI_COMM_WORLD_RANK" != 0 ] || {PASSES}')
        self.stand_in("compute-sanitizer", 'shift 4; exec "$@"')
        self.stand_in("nvidia-smi", 'case $1 in *=name,*) echo "NVIDIA H100 PCIe, 580.95" ;; esac')
        missing = self.stand_in("no-pytorch", "echo '{\"missing\": \"nothing there\"}'")
        report, made = self.check("--data", self.data, "--python", missing, "--skip",
                                  "train_precisions,small,step_bf16,transformers")
        self.assertEqual(report["status"], "incomplete")
        for name, check in made.items():
            with self.subTest(name=name):
                self.assert_status(check, "not run" if name == "plans" else "passed")
                self.assertTrue((self.out / check["log"]).exists())
                self.assertEqual(bool(check["commands"]), name != "plans")
        self.assertIn("all-reduce", "".join(made["facts"]["figures"]["doctor"]))
        self.assertIn("message-ring", "".join(made["facts"]["figures"]["doctor, 2 ranks"]))
        self.assertEqual(made["plans"]["reason"], f"no program annulus_plan_tests in {self.programs}")
        self.assertEqual(made["unit_operations"]["figures"], {"test cases": 2, "assertions": 3})
        self.assertGreaterEqual(made["train"]["figures"]["test accuracy"], 0.5)
        self.assertEqual(len(set(made["resume"]["figures"].values())), 1)
        self.assertEqual([row["ranks"] for row in made["train_ranks"]["rows"]], [2])
        self.assertGreater(made["tune_fp16"]["figures"]["images/s before"], 0)
        self.assertGreater(made["tune_gpt"]["figures"]["tokens/s"], 0)
        self.assertEqual([row["who"] for row in made["step_fp16"]["rows"]], ["annulus, tuned"])
        self.assertEqual(made["step_fp16"]["rows"][0]["of"], "lenet, batch 4, fp16")
        self.assertEqual(made["step_fp16"]["figures"]["PyTorch eager"],
                         "not run: no PyTorch with CUDA: nothing there")
        self.assertEqual(len(made["shared_2"]["rows"]), 3)
        self.assertEqual({(row["size"], row["who"]) for row in made["all_reduce_2"]["rows"]},
                         {(size, who) for size in ("4 KiB", "64 KiB") for who in ("ring", "direct", "shm", "mpi")})
        self.assertTrue(json.loads((self.out / "timeline_bf16.json").read_text()))
        self.assertIn(" --precision fp16 ", made["profile_fp16"]["commands"][-1])
        kernels = [[cell.strip() for cell in line.strip("|").split("|")]
                   for line in made["profile_bf16"]["figures"]["kernels"]]
        self.assertEqual(kernels[0][-2:], ["ms predicted", "ms measured"])
        self.assertEqual([row[0] for row in kernels if row[0].startswith("convolution")],
                         ["convolution, forward", "convolution, backward"])
        self.assertGreater(float(kernels[-1][-1]), 0)
        self.assertIn("emulated GPU", self.markdown)
        statuses = {target["what"]: target["status"] for target in report["targets"]}
        self.assertEqual(statuses["times PyTorch compile"], "not measured")
        self.assertEqual(statuses["times one rank's images/s, together"], "not judged")  # the sizes are not measurements

    def test_beside_pytorch(self):
        self.take_annulus()
        report, made = self.check("--python", self.stand_in("pytorch", PYTORCH), "--only", "step_bf16,small,all_reduce_*")
        for name in ("step_bf16", "small", "all_reduce_2"):
            self.assert_status(made[name], "passed")
        self.assertEqual(made["step_bf16"]["figures"]["PyTorch compile"], "failed: PyTorch: no compiler")
        ours, eager = made["step_bf16"]["rows"]
        self.assertEqual((ours["who"], eager["who"], eager["images/s"]), ("annulus", "PyTorch eager", 1000))
        self.assertAlmostEqual(eager["ours / it"], ours["images/s"] / 1000)
        for row in made["all_reduce_2"]["rows"]:
            ring = next(r for r in made["all_reduce_2"]["rows"] if r["size"] == row["size"] and r["who"] == "ring")
            self.assertAlmostEqual(row["it / our ring"], row["us"] / ring["us"])
        measured = [target["value"] for target in report["targets"] if target["check"] == "all_reduce_2"]
        self.assertEqual(len(measured), 2)

    def test_peaks_of_an_unknown_gpu(self):
        self.take_annulus()
        self.stand_in("nvidia-smi", 'case $1 in *=name,*) echo "NVIDIA T400, 580.95" ;; esac')
        _, made = self.check("--python", "false", "--only", "profile_bf16")
        lines = made["profile_bf16"]["figures"]["kernels"]
        self.assertNotIn("ms predicted", lines[0])
        self.assertIn("ms measured", lines[0])
        self.assertIn("the peaks of NVIDIA T400 are unknown", lines[-1])

    def test_a_program_that_fails_hides_no_figure_of_others(self):
        self.stand_in("annulus", f"[ $1 = doctor ] || exit 3; {DOCTOR}")
        _, made = self.check("--python", self.stand_in("pytorch", PYTORCH), "--only", "step_fp16,shared_2,all_reduce_2",
                             status=1)
        self.assert_status(made["step_fp16"], "failed", "annulus: exit status 3")
        self.assertEqual([(row["who"], row["images/s"], row["ours / it"]) for row in made["step_fp16"]["rows"]],
                         [("PyTorch eager", 1000, None)])
        self.assert_status(made["shared_2"], "failed", "several: exit status 3")
        self.assert_status(made["all_reduce_2"], "failed", "ours: exit status 3")
        self.assertEqual({row["who"] for row in made["all_reduce_2"]["rows"]}, {"gloo"})

    def test_what_was_tuned_before_the_tuning_was_cut_off_is_kept(self):
        self.stand_in("annulus", f"""[ $1 = bench ] || {{ {DOCTOR}; exit; }}
            case "$*" in *--tune*) echo '{{}}' > {self.out}/tune.json; exec sleep 100 ;; esac
            for file; do :; done  # --json FILE
            echo '{{"rows": [{{"images_per_second": 7, "median_seconds": 0.1}}]}}' > "$file" """)
        _, made = self.check("--python", "false", "--only", "tune_fp16", "--seconds", 6)
        self.assert_status(made["tune_fp16"], "not run", "out of time")
        self.assertEqual(made["tune_fp16"]["figures"], {"images/s before": 7, "file": "tune.json"})
        self.assertTrue((self.out / "tune.json").exists())

    def test_calls_share_the_checks(self):
        def listed(*arguments):
            run = subprocess.run([sys.executable, SCRIPT, "--no-build", "--list", *arguments], capture_output=True, text=True)
            return {line.split()[2]: int(line.split()[3]) for line in run.stdout.splitlines()}
        calls = [listed("--call", number) for number in "1234567"]
        self.assertEqual([next(iter(call)) for call in calls], ["facts"] * 7)
        self.assertEqual(["facts", *(name for call in calls for name in list(call)[1:])], list(listed()))
        for call in calls:  # as documented
            self.assertLessEqual(sum(call.values()), 300)
        for call, precision in zip(calls[3:], ("bf16", "fp16")):
            self.assertLess({f"{name}_{precision}" for name in ("tune", "step", "profile")}, set(call))

    def test_archive(self):
        self.stand_in("annulus", DOCTOR)
        self.stand_in("annulus_plan_tests", PASSES)
        self.out.mkdir()
        (self.out / "fashion.h5").write_text("data")
        _, made = self.check("--only", "plans", "--python", "false", "--archive", self.folder / "reports.tar.gz")
        self.assert_status(made["plans"], "passed")
        with tarfile.open(self.folder / "reports.tar.gz") as tar:
            self.assertEqual(tar.getnames(), [f"out/{name}" for name in ("facts.log", "plans.log", "report.json", "report.md")])
            self.assertEqual(json.load(tar.extractfile("out/report.json"))["checks"][-1]["status"], "passed")

    def test_failures_are_reported_and_the_rest_continues(self):
        self.stand_in("annulus", DOCTOR)
        self.stand_in("annulus_unit_tests", "echo 'a test: 1 is not 2'; exit 1")
        self.stand_in("annulus_gpu_tests", "kill -SEGV $$")
        self.stand_in("annulus_gpu_mpi_device_tests", "echo 'nothing was tested'")
        self.stand_in("annulus_plan_tests", PASSES)
        report, made = self.check("--only", "unit_operations,kernels,all_reduce_tests_2,plans,train,step_bf16", status=1)
        self.assertEqual(report["status"], "failed")
        self.assert_status(made["unit_operations"], "failed", "exit status 1: a test: 1 is not 2")
        self.assert_status(made["kernels"], "failed", "SIGSEGV")
        self.assert_status(made["all_reduce_tests_2"], "failed", "no line 'All tests passed'")
        self.assert_status(made["plans"], "passed")
        self.assert_status(made["train"], "not run", "no data")
        self.assert_status(made["step_bf16"], "failed")  # a program that writes no table
        self.assertIn("a test: 1 is not 2", self.markdown)
        self.assertIn("failed", self.printed)

    def test_without_a_gpu_nothing_counts_as_passed(self):
        self.stand_in("annulus", "echo '  cuda          no: there is no NVIDIA driver'")
        self.stand_in("annulus_unit_tests", PASSES)
        _, made = self.check("--only", "unit_operations,tune_bf16", status=1)
        self.assert_status(made["facts"], "failed", "no GPU: there is no NVIDIA driver")
        self.assert_status(made["unit_operations"], "not run", "no GPU")
        self.assert_status(made["tune_bf16"], "not run", "no GPU")

    def test_nothing_is_built_without_a_gpu(self):
        run = subprocess.run([sys.executable, SCRIPT, "--quick", "--build", self.folder / "build", "--out", self.out],
                             capture_output=True, text=True, timeout=60, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"failed .* build: .*: CUDA's driver shows no GPU")
        self.assertFalse((self.folder / "build").exists(), run.stdout)

    def test_budget(self):
        self.stand_in("annulus", DOCTOR)
        self.stand_in("annulus_gpu_tests", PASSES)
        self.stand_in("annulus_unit_tests", f"echo $$ > {self.folder}/pid; exec sleep 100")
        self.stand_in("annulus_plan_tests", PASSES)
        begin = time.monotonic()
        report, made = self.check("--only", "fused_passes,unit_operations,plans", "--seconds", 6, "--python", "false")
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual(report["status"], "incomplete")
        self.assert_status(made["fused_passes"], "passed")
        self.assert_status(made["unit_operations"], "not run", "out of time")
        self.assert_status(made["plans"], "not run", "out of time")
        pid = int((self.folder / "pid").read_text())
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_missed_and_unmeasured_targets_are_listed(self):
        listed = [checks.Check("a", "A", 1, None, (checks.Target("times B", "at least", 1.25),)),
                  checks.Check("c", "C", 1, None, (checks.Target("exposed", "at most", 0.05),))]
        results = [{"name": "a", "measured": {"times B": [("x", 1.3), ("y", 1.2)]}}]
        self.assertEqual([(row["of"], row["status"]) for row in checks.judge(listed, results, quick=False)],
                         [("x", "met"), ("y", "missed"), ("C", "not measured")])
        results.append({"name": "c", "measured": {"exposed": [("z", 0.06)]}})
        self.assertEqual(checks.judge(listed, results, quick=False)[-1]["status"], "missed")

    def test_targets_for_one_gpu_are_not_judged_on_others(self):
        listed = [checks.Check("a", "A", 1, None, (checks.Target("images/s", "at least", 7000, gpu="NVIDIA H200"),))]
        results = [{"name": "a", "measured": {"images/s": [("x", 6000.0)]}}]
        lines = {gpu: checks.target_line(*checks.judge(listed, results, quick=False, gpu=gpu))
                 for gpu in ("NVIDIA H200", "NVIDIA H100 PCIe")}
        self.assertEqual(lines["NVIDIA H200"], "missed: x: 6,000 images/s (at least 7000)")
        self.assertEqual(lines["NVIDIA H100 PCIe"],
                         "not judged: x: 6,000 images/s (at least 7000 on NVIDIA H200, this is NVIDIA H100 PCIe)")

    def test_invalid_options(self):
        run = subprocess.run([sys.executable, SCRIPT, "--only", "unti", "--out", self.out], capture_output=True,
                             text=True)
        self.assertEqual(run.returncode, 2)
        self.assertIn("unti", run.stderr)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    helper.main()
