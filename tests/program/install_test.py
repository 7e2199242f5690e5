"""What `cmake --install` installs, and that it works without the repository."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import helper

BUILD = pathlib.Path(helper.ANNULUS).parent
ROOT = pathlib.Path(__file__).resolve().parents[2]

ENVIRONMENT = {name: value for name, value in {**os.environ, **helper.ENVIRONMENT}.items() if name != "ANNULUS"}

# Completes the command line $1, and prints the proposals.
COMPLETE = """
source "$PREFIX/share/bash-completion/completions/annulus"
PATH=$PREFIX/bin:$PATH
read -ra COMP_WORDS <<< "$1"
[[ $1 != *' ' ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_annulus annulus "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="annulus-test-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr/local"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "DESTDIR": str(folder)})
        cls.folder, cls.prefix = folder, folder / "usr/local"

    def run_installed(self, program, *arguments, **environment):
        return subprocess.run([self.prefix / program, *arguments], text=True, capture_output=True, cwd=self.folder, timeout=60,
                              env={**ENVIRONMENT, **environment})

    def test_the_program_runs_and_names_its_commit(self):
        shown = self.run_installed("bin/annulus", "--version")
        commit = r" \(commit [0-9a-f]{7,}(-dirty)?\)" if (ROOT / ".git").exists() else ""
        self.assertRegex(shown.stdout, rf"^annulus \d+\.\d+\.\d+{commit}\n$")
        models = self.run_installed("bin/annulus", "models")
        self.assertEqual((models.returncode, models.stderr), (0, ""))
        self.assertIn("resnet50", models.stdout)

    def test_the_manual_page_has_all_options_of_all_commands(self):
        page = (self.prefix / "share/man/man1/annulus.1").read_text().replace(r"\-", "-")
        for command in ("train", "checkpoint average", "bench step", "predict-scaling"):
            with self.subTest(command):
                shown = self.run_installed("bin/annulus", *command.split(), "--help-all").stdout
                self.assertIn(f".SH {command.upper()}\n.nf\n{shown.strip()}\n.fi\n", page)
        self.assertEqual(page.count(".SH CONTROL EXCLUDE"), 1)

    @unittest.skipUnless(shutil.which("qemu-x86_64") and os.uname().machine == "x86_64", "no qemu-x86_64 (Debian's qemu-user)")
    def test_an_older_processor_is_named(self):
        """Instead of an illegal instruction."""
        shown = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", self.prefix / "bin/annulus", "--version"], text=True,
                               capture_output=True, env=ENVIRONMENT, timeout=60)
        lines = [line for line in shown.stderr.splitlines() if line.startswith("annulus: ")]
        self.assertEqual((shown.returncode, shown.stdout, len(lines)), (1, "", 1), shown.stderr)
        self.assertRegex(lines[0], r"the processor of \S+ lacks avx, avx2, fma.*, which the program was compiled for: build it on")

    def test_it_finds_its_module(self):
        """With a driver that has nothing in it, which is enough to look for the module."""
        subprocess.run(["g++", "-shared", "-o", self.folder / "libcuda.so.1", "-x", "c++", "/dev/null"], check=True)
        shown = self.run_installed("bin/annulus", "doctor", LD_LIBRARY_PATH=str(self.folder)).stdout
        if "built without CUDA" in shown:
            self.skipTest("built without CUDA")
        missing = rf"there is no libannulus_cuda.so in {self.prefix}/bin or {self.prefix}/lib/annulus"
        self.assertEqual(missing not in shown, (BUILD / "libannulus_cuda.so").exists(), shown)

    def run_example(self, program):
        shown = subprocess.run([helper.MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2", program], text=True,
                               capture_output=True, timeout=60, env={**ENVIRONMENT, "LD_LIBRARY_PATH": str(self.prefix / "lib")})
        self.assertRegex(shown.stdout, r"^average of 2 ranks: 0.5; shared memory", shown.stderr)

    @unittest.skipUnless(shutil.which("mpicc") and shutil.which("pkg-config"), "no mpicc or pkg-config")
    def test_c_programs_find_the_collectives_by_pkg_config(self):
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "annulus_collectives"], text=True, capture_output=True, check=True,
                               env={**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}).stdout.split()
        program = self.folder / "example"
        subprocess.run(["mpicc", "-std=c99", ROOT / "collectives/example.c", *flags, "-o", program], check=True)
        self.run_example(program)

    def test_cmake_projects_find_the_collectives(self):
        project = self.folder / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(f"""cmake_minimum_required(VERSION 3.25)
            project(example C)
            find_package(annulus_collectives 0.1 REQUIRED)
            add_executable(example {ROOT}/collectives/example.c)
            target_link_libraries(example annulus::collectives)
            """)
        for arguments in (["-S", project, "-B", project, f"-DCMAKE_PREFIX_PATH={self.prefix}"], ["--build", project]):
            subprocess.run(["cmake", *arguments], check=True, stdout=subprocess.DEVNULL)
        self.run_example(project / "example")

    def test_scripts_find_the_program_and_each_other(self):
        scripts = "share/annulus/scripts"
        shown = self.run_installed(f"{scripts}/launch", "-np", "2", "--dry-run", "annulus", "train").stderr
        self.assertRegex(shown, r"^\+ mpirun -np 2 .*annulus train\n$")
        shown = self.run_installed(f"{scripts}/study", "run", "--help", COLUMNS="1000").stdout
        self.assertIn(f"path of annulus ({self.prefix}/bin/annulus)", shown)
        for name in ("slurm/train.sbatch", "pbs/train.pbs", "lsf/train.lsf", "modules/annulus.lua"):
            self.assertTrue((self.prefix / scripts / name).is_file(), name)

    def test_completion(self):
        def complete(line):
            return subprocess.run(["bash", "-c", COMPLETE, "bash", line], text=True, check=True, capture_output=True,
                                  env={**os.environ, "PREFIX": str(self.prefix)}).stdout.split()
        for line, expected in (("annulus tr", ["train"]), ("annulus train --mo", ["--model"]),
                               ("annulus bench ", ["input", "noise", "all-reduce", "links", "step"]),
                               ("annulus bench all-reduce --algo", ["--algorithms"]), ("annulus --vers", ["--version"]),
                               ("annulus train --data x.h5 --all-reduce sh", ["shm"]), ("annulus train --epochs ", []),
                               ("annulus train --data x", []), ("annulus eval --mo", [])):
            with self.subTest(line=line):
                self.assertEqual(complete(line), expected)


if __name__ == "__main__":
    helper.main()
