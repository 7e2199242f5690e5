"""The manual shows no command and no option that the program and the scripts do not have, and README.md's commands work."""
import itertools
import pathlib
import re
import subprocess
import tempfile
import unittest

import helper
import manual
from manual import ROOT

OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])\b(?!-)")
# Options of other programs: MPI's, Slurm's, CMake's, Horovod's, torchrun's.
FOREIGN = {"--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--with-ft", "--host", "--mpi", "--nodes", "--install",
           "--prefix", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--gpus-per-task", "--no-kill", "--logdir",
           "--pid", "--network-interfaces", "--check-build", "--min-np", "--robot", "--robot-paths",
           "--sourcepath", "--standalone", "--nproc-per-node"}


def pages():
    return [page for page in (ROOT / "README.md", *ROOT.glob("*/README.md"), *ROOT.glob("*/*/*.md"))
            if page.parent.name not in ("results", "tests") and page.relative_to(ROOT).parts[0] in
            ("README.md", "src", "kernels", "collectives", "models", "scripts")]


def options_of(*command):
    shown = helper.run(*command, "--help-all")
    return set(OPTION.findall(shown.out)), re.findall(r"^  ([a-z][a-z-]+) ", shown.out.partition("Commands:")[2], re.MULTILINE)


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = {}
        for name in options_of()[1]:
            cls.options[name], commands = options_of(name)
            cls.options |= {f"{name} {inner}": options_of(name, inner)[0] for inner in commands}

    def test_commands_have_the_options_they_are_shown_with(self):
        seen = 0
        for page in pages():
            text = re.sub(r"\\\n", " ", page.read_text())
            for line in re.findall(r"^ *(?:[^`\n]*? )?build/annulus ([a-z].*)", text, re.MULTILINE):
                line = re.split(r"  #|  \(| > ", line)[0]
                name = next(n for words in (2, 1) if (n := " ".join(line.split()[:words])) in self.options)
                with self.subTest(page=page.name, line=line):
                    seen += 1
                    self.assertLessEqual(set(OPTION.findall(line)), self.options[name])
        self.assertGreater(seen, 60)

    def test_every_option_in_the_text_exists(self):
        scripts = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".py", ".sbatch")]
        known = set(itertools.chain(FOREIGN, *self.options.values(), *(OPTION.findall(path.read_text()) for path in scripts)))
        for page in pages():
            with self.subTest(page=page.relative_to(ROOT)):
                self.assertEqual(set(OPTION.findall(page.read_text())) - known, set())

    def test_commands_that_are_not_typed_have_the_options_they_are_shown_with(self):
        for page in manual.pages():
            for _, command in manual.commands(page):
                script = re.match(r"(scripts/[\w-]+)(?: ([a-z]+)(?= ))?", command)
                if not manual.not_typed(command) or not script:
                    continue
                with self.subTest(command):
                    words = [word for word in script.groups() if word]
                    shown = subprocess.run([*words, "--help"], cwd=ROOT, capture_output=True, text=True)
                    self.assertEqual(shown.returncode, 0, shown.stderr)
                    own, _, of_train = command.partition("#")[0].partition(" build/annulus train ")
                    self.assertLessEqual(set(OPTION.findall(own)), set(OPTION.findall(shown.stdout)))
                    self.assertLessEqual(set(OPTION.findall(of_train)), self.options["train"])

    def test_batch_scripts_get_options_of_train(self):
        seen = 0
        for page in manual.pages():
            for before, command in manual.commands(page):
                options = re.search(r"scripts/slurm/train.sbatch (.*)|ANNULUS_OPTIONS=\"(.*)\"", before + command)
                if options:
                    seen += 1
                    self.assertLessEqual(set(OPTION.findall(options[0])), self.options["train"])
        self.assertGreater(seen, 4)


class Typed(unittest.TestCase):
    """The commands of README.md, in a fresh folder. manual_pages_test.py has those of the other pages."""

    def test_readme(self):
        with tempfile.TemporaryDirectory(prefix="annulus-test-") as name:
            folder = pathlib.Path(name)
            manual.prepare(folder / "typed")
            # Studies take longer, and scripts/scaling/README.md has them, too.
            failed = manual.type_page(ROOT / "README.md", folder / "typed", manual.environment(folder), left_out="scripts/study ")
            self.assertEqual(failed, [], "\n".join(failed))

    def test_every_exception_is_one(self):
        found = [command for page in manual.pages() for _, command in manual.commands(page)]
        self.assertGreater(len(found), 90)
        for pattern, _ in manual.NOT_TYPED:
            self.assertTrue(any(re.search(pattern, command) for command in found), pattern)
        for pattern, replacement in manual.SMALLER:
            changed = [re.sub(pattern, replacement, command) for command in found]
            self.assertNotEqual(changed, found, pattern)
            found = changed


if __name__ == "__main__":
    helper.main()
