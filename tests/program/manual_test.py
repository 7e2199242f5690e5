"""The manual shows no command and no option that the program and the scripts do not have."""
import itertools
import pathlib
import re
import subprocess
import unittest

import helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])\b(?!-)")
# Options of other programs: MPI's, Slurm's, CMake's.
FOREIGN = {"--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--with-ft", "--host", "--mpi", "--nodes", "--install",
           "--prefix", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--gpus-per-task", "--no-kill", "--logdir",
           "--pid"}


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


if __name__ == "__main__":
    helper.main()
