"""scripts/formats: accepted by the tools that they are for, if these are installed."""
import contextlib
import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
import unittest
import unittest.mock

import helper

FORMATS = helper.pathlib.Path(__file__).resolve().parents[2] / "scripts/formats"


# scripts/setup --all-tests installs them, but for Spack.
TOOLS = FORMATS.parents[1] / "build/peers/formats/bin"
PATH = f"{TOOLS}:{os.environ['PATH']}"
PYTHON = shutil.which("python", path=str(TOOLS)) or sys.executable
# The tools start mpirun themselves, in CI as root.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def needs(program):
    return unittest.skipUnless(shutil.which(program, path=PATH), f"{program} is not installed")


class Formats(helper.ProgramTest):
    def run_tool(self, *command):
        done = subprocess.run(list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=2 * helper.TIMEOUT,
                              stdin=subprocess.DEVNULL,
                              env={"LMOD_CMD": "/usr/share/lmod/lmod/libexec/lmod", **os.environ, **helper.ENVIRONMENT, **MPIRUN, "PATH": PATH,
                                   "ANNULUS": str(helper.ANNULUS), "RFM_PREFIX": str(self.folder)})
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @needs("reframe")
    def test_reframe_runs_the_tests(self):
        shown = self.run_tool("reframe", "-c", FORMATS / "reframe_annulus.py", "-r", "-n", "AnnulusStep|AnnulusTraining|mobilenet_v3_large", "-S", "seconds=0.1", "-S", "batch=4", "-S",
                              f"AnnulusTraining.data={self.data}", "--nocolor")
        for name in ("AnnulusStep", "AnnulusTraining", "AnnulusNetwork %network=mobilenet_v3_large"):
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
        if subprocess.run([PYTHON, "-c", "import mlperf_logging"], capture_output=True).returncode != 0:
            self.skipTest("mlperf-logging is not installed: its compliance checker is not run")
        by_key["eval_accuracy"]["value"] = 0.9  # the checker refuses 1, which this data may reach
        file = self.folder / "result_0.txt"
        file.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
        shown = self.run_tool(PYTHON, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0", file)
        self.assertNotIn("FAIL", shown)

    @needs("jube")
    def test_jube_runs_the_steps(self):
        self.run_tool("jube", "run", "--hide-animation", "-o", self.folder / "out", FORMATS / "jube.yaml")
        shown = self.run_tool("jube", "result", self.folder / "out")
        self.assertRegex(shown, r"\| +2 \| lenet \| +64 \| +[\d.]+ \| +[\d.e-]+ \|")  # images/s and seconds on two ranks
        self.assertRegex(shown, r"\| +2 \| +[\d.]+ \|")                            # busbw

    def test_the_spack_recipe(self):
        """With stand-ins for Spack: the options exist in CMakeLists.txt, and the smoke tests pass with this program."""
        package = recipe()()
        known = cmake_options()
        for variants, given in (({"cuda": False, "tests": True}, {"ANNULUS_DEVELOPER": True, "ANNULUS_CUDA": "off"}),
                                ({"cuda": True, "tests": False, "cuda_arch": ["80", "90"]},
                                 {"ANNULUS_DEVELOPER": False, "ANNULUS_CUDA": "on", "ANNULUS_CUDA_ARCHITECTURES": ["80", "90"]})):
            package.variants = variants
            found = dict(package.cmake_args())
            self.assertLessEqual(set(found), known)
            self.assertEqual(found, {"ANNULUS_ARCH": "x86-64-v3", **given})
        self.assertEqual(package.git, f"file://{FORMATS.parents[1]}")
        smoke = [name for name in dir(package) if name.startswith("test_")]
        self.assertEqual(smoke, ["test_models", "test_step"])
        for name in smoke:
            getattr(package, name)()

    @needs("spack")
    def test_spack_accepts_the_recipe(self):
        self.run_tool("spack", "repo", "add", "--scope", "site", FORMATS / "spack/spack_repo/annulus")
        try:
            self.run_tool("spack", "audit", "packages", "annulus")
            for spec in ("annulus+tests", "annulus+cuda cuda_arch=90"):
                self.run_tool("spack", "spec", spec)
        finally:
            self.run_tool("spack", "repo", "remove", "--scope", "site", "annulus")

    def test_the_easyconfigs(self):
        """The options exist in CMakeLists.txt, and the sanity checks pass with this program."""
        known = cmake_options()
        for file in (FORMATS / "easybuild").glob("Annulus*.eb"):
            names = {name: name for name in ("SYSTEM", "SHLIB_EXT", "PYPI_LOWER_SOURCE", "SOURCELOWER_TAR_GZ")}
            exec(file.read_text(), names)  # an easyconfig is Python
            self.assertEqual(f"Annulus-{names['version']}-gompi-{names['toolchain']['version']}", file.stem.partition("-CUDA")[0])
            self.assertLessEqual(set(re.findall(r"-D(ANNULUS_\w+)=", names["configopts"])), known)
            self.assertIn(f"project(annulus VERSION {names['version']} ", (FORMATS.parents[1] / "CMakeLists.txt").read_text())
            for command in names["sanity_check_commands"]:
                program, *arguments = command.split()
                self.assertEqual(program, "annulus")
                self.succeed(*arguments)

    @needs("eb")
    @unittest.skipUnless(helper.pathlib.Path("/usr/share/lmod").exists(), "EasyBuild needs Lmod")
    def test_easybuild_accepts_the_easyconfigs(self):
        folder = FORMATS / "easybuild"
        options = ["--prefix", self.folder / "eb", *(["--allow-use-as-root-and-accept-consequences"] if os.geteuid() == 0 else [])]
        self.assertIn("All style checks PASS", self.run_tool("eb", *options, "--check-style", *sorted(folder.glob("*.eb"))))
        for file in folder.glob("Annulus*.eb"):  # finds all dependencies
            shown = self.run_tool("eb", *options, f"--robot-paths=:{folder}", "--robot", "--dry-run-short", file)
            self.assertRegex(shown, rf"/{re.escape(file.name)} \(module: Annulus/0.1.0-gompi-2024a")


def cmake_options():
    return set(re.findall(r"^(?:option|set)\((ANNULUS_\w+)", (FORMATS.parents[1] / "CMakeLists.txt").read_text(), re.MULTILINE))


class SpackPackage:
    """Stands in for Spack's CMakePackage. `variants`: the value of each."""
    prefix = types.SimpleNamespace(bin=types.SimpleNamespace(annulus=helper.ANNULUS))
    variants = {}

    @property
    def spec(self):
        return types.SimpleNamespace(
            satisfies=lambda text: bool(self.variants[text.removeprefix("+")]), target={"avx2"},
            variants={name: types.SimpleNamespace(value=value) for name, value in self.variants.items()})

    def define(self, name, value):
        return name, value

    def define_from_variant(self, name, variant):
        return name, self.variants[variant]


def which(program):
    def run(*arguments, output, error):
        assert output == error == str.split  # Spack then returns both
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=helper.TIMEOUT)
        return done.stdout + done.stderr
    return run


def recipe():
    """The Spack package, made with stand-ins for what the recipe imports."""
    directives = {name: lambda *_, **__: None for name in ("version", "variant", "depends_on", "conflicts", "generator")}
    names = {"spack_repo.builtin.build_systems.cmake": {"CMakePackage": SpackPackage},
             "spack_repo.builtin.build_systems.cuda": {"CudaPackage": type("CudaPackage", (), {})},
             "spack.package": {**directives, "when": lambda _: contextlib.nullcontext(), "which": which}}
    modules = {}
    for name, content in names.items():
        for part in itertools.accumulate(name.split("."), "{}.{}".format):
            modules.setdefault(part, types.ModuleType(part))
        vars(modules[name]).update(content)
    with unittest.mock.patch.dict(sys.modules, modules):
        file = FORMATS / "spack/spack_repo/annulus/packages/annulus/package.py"
        return runpy.run_path(str(file))["Annulus"]


if __name__ == "__main__":
    helper.main()
