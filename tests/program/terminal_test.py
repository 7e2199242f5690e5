"""What the program writes on a terminal and nowhere else: progress and colours."""
import re

import helper

BAR = r"\x1b\[\?7l{} \[=*> *\] +\d+ %  .*?\x1b\[\?7h"
CLEAR = "\r\x1b[2K"
BOLD, RED, YELLOW, END = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class Terminal(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.large = helper.write_data(cls.shared / "large.h5", train=2000, test=6000)
        cls.trained = cls.shared / "trained"
        result = helper.run(*cls.training(cls.trained, model="cnn", data=cls.large, max_steps=3))
        if result.status != 0:
            raise AssertionError(result)

    def run_on(self, streams, *arguments, ranks=0, environment=None, status=0):
        result = helper.run_on_terminals(helper.command(arguments, ranks), streams, environment)
        self.assertEqual(result.status, status, result)
        return result

    def assert_plain(self, text):
        self.assertNotRegex(text, "[\x1b\r]")

    def test_progress_of_evaluation(self):
        arguments = ["eval", "--data", self.large, "--checkpoint", self.trained, "--batch", 1]
        expected = helper.run(*arguments)
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.run_on(["err"], *arguments, ranks=ranks)
                self.assertRegex(result.err, BAR.format("evaluating"))
                self.assertRegex(result.err, r" left  \d+/6000 images  \d+ images/s\x1b")
                self.assertTrue(result.err.endswith(CLEAR), repr(result.err[-200:]))
                done = [int(images) for images in re.findall(r"(\d+)/6000", result.err)]
                self.assertEqual(done, sorted(done))  # of one rank alone
                self.assertEqual(result.out.split(", loss")[0], expected.out.split(", loss")[0])
        self.assertEqual(expected.err, "")
        self.assert_plain(expected.out)
        self.assertEqual(self.run_on(["err"], *arguments, environment={"TERM": "dumb"}).err, "")

    def test_predictions_are_not_mixed_with_progress(self):
        arguments = ["predict", self.large, "--checkpoint", self.trained, "--batch", 1]
        expected = helper.run(*arguments)
        self.assert_plain(expected.out + expected.err)
        result = self.run_on(["err"], *arguments)
        self.assertEqual(result.out, expected.out)
        self.assertRegex(result.err, BAR.format("predicting"))
        self.assertRegex(result.err, rf"\r\x1b\[2K6000 images in [\d.]+ s, {re.escape(BOLD)}accuracy [\d.]+ %{re.escape(END)}: ")
        both = self.run_on(["out", "err"], *arguments)
        self.assertEqual(both.out, expected.out)
        self.assertNotIn("predicting", both.err)

    def test_progress_of_benchmarks(self):
        for name, bar, options in (("step", "all-reduce none", ["--model", "lenet", "--all-reduce", "none,auto"]),
                                   ("all-reduce", "16 MiB", ["--sizes", "16MiB", "--algorithms", "mpi"]),
                                   ("noise", "apart and in step", ["--threads", 1]),
                                   ("input", "reading", ["--data", self.large])):
            with self.subTest(name):
                result = self.run_on(["err"], "bench", name, *options, "--seconds", 1)
                self.assertRegex(result.err, BAR.format(bar))
                self.assertTrue(result.err.endswith(CLEAR), repr(result.err[-200:]))
                self.assert_plain(result.out)
                self.assert_plain(self.run_on(["out"], "bench", name, *options, "--seconds", 0.3).err)

    def test_progress_of_training(self):
        arguments = self.training(self.folder / "run", data=self.large, model="lenet", batch=1)
        self.assertRegex(self.run_on(["out"], *arguments).out, BAR.format("epoch 1/1"))
        arguments = self.training(self.folder / "short", data=self.large, model="cnn", batch=1, max_steps=1000)
        drawn = re.findall(r"epoch 1/1, to step 1000 \[=*> *\] +(\d+) %", self.run_on(["out"], *arguments).out)
        self.assertTrue(drawn)
        self.assertGreater(int(drawn[-1]), 50)  # more than half an epoch of 2,000

    def test_errors_are_red(self):
        missing = ["eval", "--data", self.folder / "none.h5", "--checkpoint", self.trained]
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.run_on(["err"], *missing, ranks=ranks, status=1)
                self.assertIn(f"{RED}annulus: {END}{self.folder}/none.h5: ", result.err)
        self.assertTrue(self.run_on(["err"], "eval", "--wrong", status=2).err.startswith(f"{RED}annulus: {END}"))
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            with self.subTest(environment=environment):
                result = self.run_on(["err"], *missing, environment=environment, status=1)
                self.assertTrue(result.err.startswith("annulus: "), result)
        result = self.run_on(["out"], *missing, status=1)
        self.assertTrue(result.err.startswith("annulus: "), result)

    def test_warnings_are_yellow(self):
        (self.folder / "bad.png").write_text("not an image\n")
        result = self.run_on(["err"], "predict", self.folder / "bad.png", "--checkpoint", self.trained, status=1)
        self.assertIn(f"{YELLOW}annulus: {END}skipped: ", result.err)
        arguments = ["bench", "all-reduce", "--sizes", "4KiB", "--algorithms", "mpi", "--wire", "bf16", "--seconds", 0.1]
        result = self.run_on(["out"], *arguments, ranks=2)
        self.assertIn(f"{YELLOW}warning: {END}", result.out)
        self.assertIn("\nwarning: ", self.succeed(*arguments, ranks=2).out)

    def test_headline_figures_are_bold(self):
        arguments = ["eval", "--data", self.large, "--checkpoint", self.trained]
        expected = self.succeed(*arguments).out
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                found = self.run_on(["out"], *arguments, ranks=ranks).out
                self.assertRegex(found, rf": {re.escape(BOLD)}accuracy [\d.]+ %{re.escape(END)}, \d+ of \d+ images, ")
                plain = found.replace(BOLD, "").replace(END, "")
                self.assertEqual(plain.split(", loss")[0], expected.split(", loss")[0])
        self.assertEqual(self.run_on(["out"], *arguments, environment={"NO_COLOR": "1"}).out, expected)


if __name__ == "__main__":
    helper.main()
