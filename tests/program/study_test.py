"""scripts/study: its measurements, reports and comparisons, and the statistics."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import unittest
from unittest import mock

import helper

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/study"
sys.path[:0] = [str(SCRIPT.parent), str(SCRIPT.parent / "peers")]
from scaling import estimates, extra_p, figure_style, links, noise, plots, prediction, published, settings
from scaling.interference import OTHERS

DRAWS = importlib.util.find_spec("matplotlib") is not None
NETWORK = ["--latency", "1.5us", "--bandwidth", "10Gbit/s"]
SETTINGS = ["--model", "mlp", "--seconds", "0.3", "--threads", "1", "--sizes", "4KiB,64KiB"]

# Answers as `annulus predict-scaling` does: N ranks reach 90 % of N times one rank's images/s, divided by --contention. The
# speed is lower on a slower link.
PREDICTS = f"""#!{sys.executable}
import json, sys
if "--help" in sys.argv:
    print("predict-scaling")
else:
    value = dict(zip(sys.argv, sys.argv[1:]))
    step, = json.load(open(sys.argv[2]))["rows"]
    sums = json.load(open(value["--fit"]))["rows"] if "--fit" in value else []
    assert step["ranks"] == 1 and all(row["ranks"] == 2 for row in sums)
    link = float(value.get("--bandwidth", "10Gbit/s").removesuffix("Gbit/s")) / 10
    assert "--ranks-per-node" not in value or float(value["--node-bandwidth"].removesuffix("GB/s")) > 0
    batch = int(value.get("--batch", step["batch"]))
    json.dump({{"model": step["model"], "link": {{"latency_us": 1.5, "bandwidth_gbit_s": 10, "source": "fit", "residual": 0.01}},
               "baseline": {{}}, "predictions": [
        {{"ranks": n, "batch_per_rank": batch, "global_batch": n * batch, "step_ms": 1, "compute_ms": 1, "exposed_ms": 0.25,
          "communication_ms": 1, "waiting_ms": float(value.get("--waiting", 0)), "efficiency": 0,
          "images_per_second": step["images_per_second"] * (n if n == 1 else 0.9 * n * link / float(value.get("--contention", 1)))}}
        for n in map(int, value["--ranks"].split(","))]}}, open(value["--json"], "w"))
"""

# Runs a job immediately; `srun` is then mpirun. The queue is always empty.
SLURM = {"sbatch": """#!/bin/sh
for option; do case $option in --wrap=*) command=${option#--wrap=} ;; --output=*) log=${option#--output=} ;; esac; done
echo "$@" > "$(dirname "$log")/sbatch-options"
SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 sh -c "$command" > "$log" 2>&1
echo "7;cluster"
""", "squeue": "#!/bin/sh\n", "srun": f"""#!/bin/sh
while :; do case $1 in --ntasks=*) ranks=${{1#*=}} ;; --*) ;; *) break ;; esac; shift; done
exec {helper.MPIRUN} --allow-run-as-root --oversubscribe --bind-to none -np $ranks "$@"
"""}


def study(*arguments, path=None, modules=None, even_if_busy=True):
    """Runs the script; `path`: a folder of programs to prefer; `modules`: a folder of Python modules to prefer."""
    if even_if_busy and arguments[0] not in ("report", "compare"):
        place = arguments.index("--") if "--" in arguments else len(arguments)
        arguments = (*arguments[:place], "--even-if-busy", *arguments[place:])
    here = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PBS", "LSB"))}
    environment = {**here, **helper.ENVIRONMENT}
    if modules:
        environment["PYTHONPATH"] = str(modules)
    if path:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, env=environment,
                          timeout=2 * helper.TIMEOUT)
    return helper.Result(done.returncode, done.stdout, done.stderr, 0)


def summary(out):
    return json.loads((out / "study.json").read_text())


class Study(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.measured = cls.shared / "measured"
        cls.command = ["--program", helper.ANNULUS, "--ranks", "1,2", "--weak", "--batch", 16, "--repeat", 2, *SETTINGS]
        result = study(*cls.command, "--out", cls.measured)
        assert result.status == 0, str(result)

    def setUp(self):
        super().setUp()
        self.out = self.folder / "study"
        shutil.copytree(self.measured, self.out)
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        # Figures take seconds, so only some tests create them.
        self.no_figures = self.folder / "modules"
        self.no_figures.mkdir()
        (self.no_figures / "matplotlib.py").write_text("raise ImportError('matplotlib is left out')\n")

    def stand_in(self, name, text):
        file = self.programs / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def assert_ends(self, status, *arguments, path=None, figures=False):
        result = study(*arguments, path=path, modules=None if figures else self.no_figures)
        self.assertEqual(result.status, status, f"{' '.join(map(str, arguments))}\n{result}")
        self.assertNotIn("Traceback", result.err)
        return result

    def raw(self, kind, ranks):
        return [json.loads(file.read_text()) for file in sorted((self.out / "raw").glob(f"{kind}-{ranks}-ranks-*.json"))]

    def rewrite(self, change):
        """Every measurement."""
        for file in (self.out / "raw").iterdir():
            measurement = json.loads(file.read_text())
            change(measurement)
            file.write_text(json.dumps(measurement))

    def test_the_summary_matches_the_measurements(self):
        found = summary(self.out)
        self.assertEqual([s["ranks"] for s in found["steps"]], [1, 2])
        for step in found["steps"]:
            rows = [m["result"]["rows"][0] for m in self.raw("step", step["ranks"])]
            self.assertEqual([row["batch"] for row in rows], [16, 16])
            self.assertEqual((step["batch_per_rank"], step["global_batch"]), (16, 16 * step["ranks"]))
            self.assertEqual(step["images_per_second"]["values"], [row["images_per_second"] for row in rows])
            self.assertAlmostEqual(step["images_per_second"]["median"], statistics.mean(step["images_per_second"]["values"]))
            self.assertEqual(step["images_per_second"]["confidence"], 0.5)  # that both lie on one side: 1/2
            # One step time in the report, whose parts the ledger's shares are.
            self.assertAlmostEqual(sum(step["ledger_ms"].values()), step["step_ms"]["median"])
            share = statistics.mean(row["ledger"]["compute"] / row["ledger"]["wall"] for row in rows)
            self.assertAlmostEqual(step["ledger_ms"]["compute"], share * step["step_ms"]["median"])
            self.assertEqual(len(step["lateness_ms"]), step["ranks"])
        one, two = found["steps"]
        self.assertAlmostEqual(two["efficiency"]["value"],
                               two["images_per_second"]["median"] / one["images_per_second"]["median"] / 2)
        self.assertEqual(two["efficiency"]["baseline"], "2 x 1 rank at 16 images per rank")
        self.assertEqual({(row["ranks"], row["bytes"]) for row in found["all_reduce"]}, {(2, 4096), (2, 65536)})
        self.assertEqual({row["algorithm"] for row in found["all_reduce"]}, {"auto", "message-ring", "mpi"})
        for row in found["all_reduce"]:  # of 2 ranks
            self.assertEqual(row["algbw_gb_per_s"]["values"], row["busbw_gb_per_s"]["values"])

    def test_the_reports_are_consistent_and_self_contained(self):
        two = summary(self.out)["steps"][1]
        text, page = ((self.out / name).read_text() for name in ("report.md", "report.html"))
        for report in (text, page):
            self.assertIn(f"{100 * two['efficiency']['value']:.1f} % [", report)
            self.assertIn("2 x 1 rank at 16 images per rank", report)
            self.assertIn("exposed communication", report)
        self.assertNotRegex(page, r"<(link|script|img)|url\(http|href=\"(?!#)")
        if not DRAWS:
            self.skipTest("no matplotlib: figures are not looked at")
        for name in ("speed", "ledger", "lateness", "all-reduce"):
            self.assertIn(f"({name}.svg)", text)
            self.assertGreater((self.out / f"{name}.png").stat().st_size, 1000)
            self.assertEqual((self.out / f"{name}.pdf").read_bytes()[:5], b"%PDF-")
        self.assertEqual(page.count("<svg"), len(list(self.out.glob("*.svg"))))

    @unittest.skipUnless(DRAWS, "no matplotlib")
    def test_figures_are_for_a_paper(self):
        """A column or two wide, nothing clipped, text of at least 7 pt in TrueType, no title inside, and a caption beside."""
        pyplot = plots.figure_style.drawing()
        from matplotlib.text import Text
        for name, width, height, caption, fill in plots.figures(summary(self.measured)):
            with self.subTest(name), pyplot.rc_context(figure_style.STYLE):
                self.assertIn(width, (3.3, 7.0))
                figure = pyplot.figure(figsize=(width, height), layout="constrained")
                fill(figure)
                figure.canvas.draw()
                whole = figure.get_tightbbox(figure.canvas.get_renderer())
                self.assertGreaterEqual(min(whole.x0, whole.y0), -0.01)
                self.assertLessEqual(max(whole.x1 - width, whole.y1 - height), 0.01)
                self.assertGreaterEqual(min(t.get_fontsize() for t in figure.findobj(Text) if t.get_text()), 7)
                self.assertEqual([axes.get_title() for axes in figure.axes], [""] * len(figure.axes))
                pyplot.close(figure)
                pdf = (self.measured / f"{name}.pdf").read_bytes()
                self.assertNotIn(b"/Type3", pdf)
                self.assertIn(f"/MediaBox [ 0 0 {72 * width:g}".encode(), pdf)
                self.assertEqual((self.measured / f"{name}.txt").read_text(), caption + "\n")
        self.assertRegex(caption, r"Measured 20\d\d-\d\d-\d\d on .* with annulus [\d.]+ \(commit ")

    def test_ticks_are_several_round_numbers(self):
        for low, high, ticks in ((42_000, 85_000, [3e4, 5e4, 7e4, 1e5]), (1, 1e8, [1, 100, 1e4, 1e6, 1e8]), (5, 6, [4, 5, 6, 7, 8]),
                                 (10, 10, [8, 9, 10, 11, 12])):
            self.assertEqual(figure_style.logarithmic_ticks(low, high), ticks)
        self.assertEqual([figure_style.number_text(n) for n in (0.25, 12, 1500, 20_000, 65_536, 3e6)],
                         ["0.25", "12", "1,500", "20k", "65.54k", "3M"])

    def test_reports_are_rewritten_from_the_measurements(self):
        before = summary(self.out)
        for file in self.out.glob("*.*"):
            file.unlink()
        self.assertIn("SKIPPED figures: matplotlib is left out", self.assert_ends(0, "report", self.out).err)
        after = summary(self.out)
        for name in ("settings", "machine", "device", "version", "steps", "all_reduce"):
            self.assertEqual(after[name], before[name])
        self.assertIn("no figures: matplotlib is left out", after["warnings"][-1])
        file = self.out / "raw/step-2-ranks-1.json"
        file.write_text(file.read_text()[:100])
        self.assertIn("step-2-ranks-1.json cannot be read", self.assert_ends(1, "report", self.out).err)
        whole = json.loads((self.measured / "raw/step-2-ranks-1.json").read_text())
        row = whole["result"]["rows"][0]
        for lacking, content in (
                ("host, load_at_begin, machine", whole["result"]),  # as annulus bench step --json writes it
                ("settings", {name: value for name, value in whole.items() if name != "settings"}),
                ("threads is missing in settings", {**whole, "settings": {"model": "mlp"}}),
                ("no rows", {**whole, "result": {"rows": []}}), ("no rows", {**whole, "result": 1}),
                ("ledger is missing in a row",
                 {**whole, "result": {**whole["result"], "rows": [{k: v for k, v in row.items() if k != "ledger"}]}})):
            with self.subTest(lacking):
                file.write_text(json.dumps(content))
                for command in ("report", self.out), (*self.command, "--out", self.out):
                    error = self.assert_ends(1, *command).err
                    self.assertRegex(error, f"study: .*step-2-ranks-1.json.*{lacking}")
        self.assertIn("has no measurement", self.assert_ends(1, "report", self.folder).err)

    def test_existing_measurements_are_not_repeated(self):
        path = self.stand_in("mpirun", "#!/bin/sh\necho 'annulus: no luck' >&2; exit 3\n").parent
        before = {file: file.stat().st_mtime_ns for file in (self.out / "raw").iterdir()}
        result = self.assert_ends(0, *self.command, "--out", self.out, path=path)
        self.assertIn("6 of 6 measurements are complete", result.err)
        # One more repeat is requested and fails. The existing ones are reported.
        result = self.assert_ends(1, *self.command, "--repeat", 3, "--out", self.out, path=path)
        self.assertIn("6 of 9 measurements are complete", result.err)
        self.assertEqual(result.err.count("exit status 3: annulus: no luck"), 3, str(result))
        self.assertIn("2 x 1 rank", result.out)
        self.assertEqual({file: file.stat().st_mtime_ns for file in (self.out / "raw").iterdir()}, before)
        result = self.assert_ends(0, *self.command, "--repeat", 3, "--ranks", 1, "--out", self.out)
        self.assertEqual([len(self.raw("step", ranks)) for ranks in (1, 2)], [3, 2])
        self.assertIn("3 with 1 rank, 2 with 2 ranks", result.out)

    def test_a_terminal_shows_what_is_being_measured(self):
        path = self.stand_in("mpirun", "#!/bin/sh\nexit 3\n").parent
        command = [sys.executable, SCRIPT, *self.command, "--even-if-busy", "--repeat", 3, "--out", self.out]
        environment = {"PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(self.no_figures)}
        result = helper.run_on_terminals(command, ["err"], environment)
        self.assertIn("\r\x1b[2Kstudy: 1 of 3: step, 1 rank, repeat 3: measuring\r\x1b[2Kstudy: 1 of 3: ", result.err)
        self.assertRegex(result.err, r"\r\x1b\[2Kstudy: 3 of 3: all-reduce, 2 ranks, repeat 3: measuring, \d+ s left in all\r")
        self.assertNotIn("\x1b", result.out)
        self.assertNotIn("measuring", self.assert_ends(1, *command[2:], path=path).err)

    def test_a_usage_error_ends_the_study(self):
        result = self.assert_ends(1, *self.command, "--repeat", 3, "--out", self.out, "--", "--nonsense", "1")
        self.assertIn("step_options is [] there", result.err)
        out = self.folder / "new"
        result = self.assert_ends(1, *self.command, "--out", out, "--", "--nonsense", "1")
        self.assertIn("1 of 3: step, 1 rank, repeat 1: FAILED", result.err.replace("of 6", "of 3"))
        self.assertIn("unknown option --nonsense", result.err)
        self.assertIn("the study ends, because the program does not accept these options", result.err)
        self.assertNotIn("all-reduce", result.err)

    def test_help_shows_the_options_of_measuring(self):
        shown = study("--help", even_if_busy=False)
        self.assertEqual(shown.status, 0)
        for option in ("--seconds", "--even-if-busy", "--latency", "strategies"):
            self.assertIn(option, shown.out)

    def test_other_settings_are_refused(self):
        result = self.assert_ends(1, *self.command, "--batch", 8, "--out", self.out)
        self.assertIn("batch is 16 there, and 8 here", result.err)
        result = self.assert_ends(1, *self.command, "--out", self.out, "--", "--bucket", "64KiB")
        self.assertIn("step_options is [] there", result.err)

    def test_strong_scaling_shares_one_batch(self):
        strong = ["--program", helper.ANNULUS, "--strong", "--batch", 16, "--repeat", 1, *SETTINGS]
        uneven = self.assert_ends(1, *strong, "--ranks", "1,2,3,4,5", "--out", self.folder / "uneven")
        self.assertIn("is not a multiple of 3, 5 ranks", uneven.err)
        self.assertFalse((self.folder / "uneven").exists())
        out = self.folder / "strong"
        self.assert_ends(0, *strong, "--ranks", "1,2", "--out", out)
        one, two = summary(out)["steps"]
        self.assertEqual([(s["batch_per_rank"], s["global_batch"]) for s in (one, two)], [(16, 16), (8, 16)])
        self.assertEqual(two["efficiency"]["baseline"], "2 x 1 rank at 16 images in total")
        text = (out / "report.md").read_text()
        self.assertIn("Efficiency is relative to 1 rank with the same global batch", text)
        self.assertIn("with a single repeat the variation between repeats is unknown", text)
        self.assertNotIn("[", text.split("## All-reduces")[0].split("## Speed")[1].replace("![", ""))  # no intervals

    def test_equal_bits_are_reported(self):
        strong = ["--program", helper.ANNULUS, "--strong", "--batch", 16, "--repeat", 1, *SETTINGS]
        self.out = out = self.folder / "shards"
        self.assert_ends(0, *strong, "--ranks", "1,2", "--out", out, "--", "--shards", "4")
        checksum = summary(out)["checksum"]
        self.assertRegex(checksum, "^[0-9a-f]{16}$")
        same = f"Every number of ranks computed the same bits (--shards): weights and optimizer state have the checksum {checksum}"
        self.assertIn(same, (out / "report.md").read_text())
        self.rewrite(lambda measurement: measurement["result"]["rows"][0].update(checksum=str(measurement["ranks"])))
        study("report", out)
        self.assertIsNone(summary(out)["checksum"])
        self.assertNotIn("the same bits", (out / "report.md").read_text())

    def test_a_language_model(self):
        text = ["--program", helper.ANNULUS, "--ranks", "1,2", "--weak", "--batch", 2, "--repeat", 1, "--model", "gpt-tiny",
                "--seconds", "0.3", "--threads", "1", "--sizes", "4KiB,64KiB"]
        out = self.folder / "text"
        self.assert_ends(0, *text, "--length", 16, "--vocabulary", 300, "--out", out, "--network", "hdr", figures=True)
        found, report = summary(out), (out / "report.md").read_text()
        for step in found["steps"]:
            raw, = (json.loads(file.read_text()) for file in (out / "raw").glob(f"step-{step['ranks']}-ranks-1.json"))
            row, profile = raw["result"]["rows"][0], raw["result"]["profile"]
            self.assertEqual((profile["length"], profile["embedding"]["vocabulary"]), (16, 300))
            self.assertEqual(step["tokens_per_second"]["values"], [row["tokens_per_second"]])
            self.assertEqual(row["tokens_per_second"], 2 * 16 * step["ranks"] / row["median_seconds"])
            self.assertEqual((step["batch_per_rank"], step["global_batch"]), (2, 2 * step["ranks"]))
        self.assertEqual(found["steps"][1]["efficiency"]["baseline"], "2 x 1 rank at 2 windows per rank")
        predicted = {p["ranks"]: p for p in found["prediction"]["predictions"]}
        self.assertAlmostEqual(predicted[4]["tokens_per_second"] * predicted[4]["step_ms"], 1e3 * 4 * 2 * 16)
        for words in ("# Scaling of gpt-tiny, weak: 2 windows per rank", "Windows of 16 tokens, a vocabulary of 300;",
                      "every rank computes 2 windows per step", "| tokens/s |", "| predicted tokens/s |"):
            self.assertIn(words, report)
        self.assertNotIn("images", report.lower())
        if DRAWS:
            self.assertIn("Training speed and efficiency, the speed divided by N times that of 1 rank at 2 windows per rank", report)
        for name, factor in (("a", 1), ("b", 0.5)):
            (self.folder / name / "raw").mkdir(parents=True)
            measurement = json.loads((out / "raw/step-1-ranks-1.json").read_text())
            for repeat in range(5):
                measurement["result"]["rows"][0]["tokens_per_second"] = factor * (1000 + repeat)
                (self.folder / name / f"raw/step-1-ranks-{repeat}.json").write_text(json.dumps(measurement))
        self.assertIn("| A, tokens/s | B, tokens/s |", self.assert_ends(1, "compare", self.folder / "a", self.folder / "b").out)

    def test_real_text(self):
        (self.folder / "texts").mkdir()
        (self.folder / "texts/a.txt").write_text("a rank sends the rows of its tokens to the next rank\n" * 40)
        file = self.folder / "text.h5"
        self.succeed("import", file, self.folder / "texts", "--from", "text")
        text = ["--program", helper.ANNULUS, "--ranks", "1,2", "--weak", "--batch", 2, "--repeat", 1, "--model", "gpt-tiny",
                "--seconds", "0.3", "--threads", "1", "--sizes", "4KiB", "--length", 16, "--data"]
        out = self.folder / "real"
        self.assert_ends(0, *text, file, "--out", out)
        found = summary(out)
        self.assertEqual([step["ranks"] for step in found["steps"]], [1, 2])
        for step in found["steps"]:
            result = json.loads((out / f"raw/step-{step['ranks']}-ranks-1.json").read_text())["result"]
            self.assertEqual((result["profile"]["length"], result["profile"]["embedding"]["vocabulary"]), (16, 257))
            row = result["rows"][0]
            self.assertEqual(row["tokens_per_second"], 2 * 16 * step["ranks"] / row["median_seconds"])
        self.assertIn(f"Windows of 16 tokens of {file.resolve()};", (out / "report.md").read_text())
        result = self.assert_ends(1, *text, file, "--batch", 1000, "--ranks", 1, "--out", self.folder / "few")
        self.assertIn("training samples, and --batch 1000 on all ranks needs 1000", result.err)
        result = self.assert_ends(1, *text, file, "--vocabulary", 300, "--ranks", 1, "--out", self.folder / "both")
        self.assertIn("--vocabulary excludes --data", result.err)

    def test_length_is_of_language_models(self):
        here = ["--program", helper.ANNULUS, "--ranks", 1, "--weak", "--batch", 2, "--repeat", 1, "--seconds", "0.1",
                "--threads", "1", "--out"]
        error = self.assert_ends(1, *here, self.folder / "a", "--model", "gpt-tiny").err
        self.assertIn("gpt-tiny reads text: give --length", error)
        error = self.assert_ends(1, *here, self.folder / "b", "--model", "mlp", "--length", 16).err
        self.assertIn("mlp reads images: give --image", error)

    def test_doubtful_measurements_give_warnings(self):
        def disturb(measurement):
            measurement["load_at_begin"] = 3.0 * measurement["machine"]["cores"]
            measurement["noise"] = {"busy_before": 0.5, "others": 0.2, "steal": 0.03,
                                    "mhz": 2000 if measurement["repeat"] == 1 else 3000}
            measurement["settings"]["threads"] = 1 + measurement["machine"]["cores"] // 2  # room for one rank
            measurement["result"]["rows"][0]["median_seconds"] = measurement["repeat"]
        self.rewrite(disturb)
        self.assert_ends(0, "report", self.out)
        found = "\n".join(summary(self.out)["warnings"])
        for words in ("load average 3.00", "used the processors just before (up to 50%", "used the processors meanwhile (up to 20%",
                      "in 6 of 6 measurements the hypervisor", "2,000 to 3,000 MHz", "spread by 67%",
                      "2 ranks: more threads than cores on a node"):
            self.assertIn(words, found)
        self.assertEqual(summary(self.out)["prediction"], {"missing": "it needs a measured step of 1 rank and all-reduces of several"})
        text = (self.out / "report.md").read_text()
        self.assertEqual(text.count("- warning: "), len(summary(self.out)["warnings"]))

    def interfere(self, measurement):
        """On two ranks computing takes 1.2 times as long as on one, 1.5 times that beside all-reduces; in the second
        repeat 1.25 and 1.6. A rank waits for an eighth of its computing. Its speed is 0.5 times that of two single ones."""
        if measurement["kind"] != "step":
            return
        two, second = measurement["ranks"] == 2, measurement["repeat"] == 2
        alone = (1.25 if second else 1.2) if two else 1
        for row in measurement["result"]["rows"]:
            sums = two and row["algorithm"] != "none"
            row["compute_seconds"] = alone * ((1.6 if second else 1.5) if sums else 1)
            row["images_per_second"] = 1000
            row["median_seconds"] = row["compute_seconds"] * (1.125 if sums else 1) + 0.1
            row["ledger"].update(dict.fromkeys(OTHERS, 0), compute=10 * row["compute_seconds"], optimizer=1, steps=10,
                                 waiting_for_slower_ranks=1.25 * row["compute_seconds"] if sums else 0)

    def test_predictions_are_reported_beside_measurements(self):
        self.rewrite(self.interfere)
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), *NETWORK, figures=True)
        found, text = summary(self.out), (self.out / "report.md").read_text()
        self.assertEqual([p["ranks"] for p in found["prediction"]["predictions"]], [2**n for n in range(13)])
        # A link that was not measured may be a fifth better or worse.
        # The median of two repeats: (1 + 0.225) * 1.55 = 1.89875; the intervals' ends are the repeats.
        four = found["prediction"]["predictions"][2]
        self.assertAlmostEqual(four["images_per_second"], 4 * 0.9 * 1000 / 1.89875)
        # Two ranks reach 1000 images/s, and 1800 / 1.89875 are predicted, 5.2 % less, which widens the others' intervals.
        error = 1 - 1800 / 1.89875 / 1000
        self.assertAlmostEqual(found["prediction"]["errors"]["images_per_second"]["low"], -error)
        self.assertEqual(found["prediction"]["errors"]["images_per_second"]["high"], 0)
        # Twice the error at four ranks, three times at eight.
        self.assertAlmostEqual(four["images_per_second_low"], 3600 / (1.25 * 1.6) / 1.2)
        self.assertAlmostEqual(four["images_per_second_high"], 3600 / (1.2 * 1.5) * 1.2 * (1 + 2 * error))
        self.assertAlmostEqual(four["efficiency_high"], 0.9 / (1.2 * 1.5) * 1.2 * (1 + 2 * error))
        two = found["prediction"]["predictions"][1]
        self.assertAlmostEqual(two["images_per_second_low"], 1800 / 2 / 1.2)
        self.assertAlmostEqual(two["waiting_ms"], 0.25)  # an eighth is a half of a quarter
        self.assertIn("| 2 | 16 | 948 [750, 1,200] | 1,000 | -5.2 % | 47.4 % [37.5, 60.0] | 0.250 | 0.250 |", text)
        widths = [p["efficiency_high"] - p["efficiency_low"] for p in found["prediction"]["predictions"][1:]]
        self.assertEqual(widths, sorted(widths))
        self.assertLessEqual(max(p["efficiency_high"] for p in found["prediction"]["predictions"]), 1)
        self.assertIn("work 22.5 % [20.0, 25.0] longer; all-reduces make computing beside them 55.0 % [50.0, 60.0] longer; the "
                      "mean random delay of a rank is 25.0 %", text)
        self.assertIn("No number of ranks is held out", text)
        self.assertEqual(text.count("| extrapolated |"), 11)
        self.assertIn("1.5 us and 10 Gbit/s (given: --latency and --bandwidth; not measured)", text)
        self.assertEqual("predicted.svg" in text, DRAWS)
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("older", "#!/bin/sh\necho train, eval\n"))
        self.assertIn("has no command predict-scaling", (self.out / "report.md").read_text())
        self.assertNotIn("predicted.svg", (self.out / "report.md").read_text())

    def test_one_node_is_not_extrapolated_over_a_network(self):
        self.rewrite(self.interfere)
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS))
        found, text = summary(self.out), (self.out / "report.md").read_text()
        self.assertEqual([p["ranks"] for p in found["prediction"]["predictions"]], [1, 2])
        self.assertIn("| 2 | 16 | 948 [891, 1,010] | 1,000 | -5.2 % | 47.4 % [44.6, 50.5] | 0.250 | 0.250 |", text)
        self.assertIn("The prediction ends at 2 ranks: the link between nodes is unknown, because all ranks were on one node", text)
        self.assertNotIn("extrapolated", text)
        # A named fabric is marked as assumed.
        self.assert_ends(0, "report", self.out, "--program", self.programs / "annulus", "--network", "hdr")
        self.assertIn("1.1 us and 200 Gbit/s (assumed: public figures of hdr; not measured)", (self.out / "report.md").read_text())
        # Ranks on a node each measured a network.
        self.rewrite(lambda m: m.update(nodes=m["ranks"], ranks_per_node=1))
        self.assert_ends(0, "report", self.out, "--program", self.programs / "annulus")
        self.assertIsNone(summary(self.out)["prediction"]["ends"])
        self.assertEqual(len(summary(self.out)["prediction"]["predictions"]), 13)
        for wrong, words in ((("--latency", "1us"), "belong together"), ((*NETWORK, "--network", "hdr"), "excludes"),
                             (("--latency", "soon"), "20us"), (("--network", "carrier-pigeon"), "hdr")):
            self.assertIn(words, self.assert_ends(2, "report", self.out, *wrong).err)

    def test_a_link_that_fits_badly_is_refused(self):
        """Two ranks in shared memory, off by 58.8 % from any link, were a flat 95.4 % [87.6, 109.0] up to 4,096 ranks."""
        self.rewrite(self.interfere)
        refuses = PREDICTS.replace("else:", "elif '--fit' in sys.argv:\n    sys.exit('annulus: off by 58.8 %')\nelse:")
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", refuses))
        self.assertIn("Not predicted: annulus predict-scaling failed: exit status 1: annulus: off by 58.8 %.",
                      (self.out / "report.md").read_text())
        # Given, the link is not fitted.
        self.assert_ends(0, "report", self.out, "--program", self.programs / "annulus", *NETWORK)
        self.assertEqual(len(summary(self.out)["prediction"]["predictions"]), 13)

    def test_nodes_of_several_ranks(self):
        for line in (["--ranks-per-node", 4, "--node-latency", "0us", "--node-bandwidth", "1.5GB/s"],
                     ["--ranks-per-node", 4, "--node-latency", "1us", "--node-bandwidth", "1.5GB/s"]):
            latency = 1e-6 * float(line[3].removesuffix("us"))
            rows = [{"algorithm": "auto", "bytes": size, "median_seconds": 2 * latency + size / 1e9} for size in (4096, 65536, 1 << 20)]
            self.assertEqual(links.node_options(rows, 4, "auto", 100_000), line)
        self.assertIsNone(links.node_options(rows[:1], 4, "auto", 100_000))
        found = settings.plan([1, 8], 1, 2)
        self.assertEqual([m.file_name for m in found], ["step-1-ranks-1.json", "step-8-ranks-1.json", "all-reduce-8-ranks-1.json",
                                                        "network-2-ranks-1.json"])

    def test_the_link_of_full_nodes(self):
        """The network is that between nodes, and all-reduces of a full node describe its memory."""
        def all_reduce(kind, ranks, nodes):
            return {"kind": kind, "ranks": ranks, "nodes": nodes, "result": {"rows": []}}
        folder = self.folder / "prediction"
        folder.mkdir()
        (folder / "step.json").write_text(json.dumps({"profile": {"layers": [{"gradient_bytes": [1 << 20]}]}}))
        fitted = []
        predictor = mock.Mock(ranks_per_node=4, folder=folder)
        predictor.settings.all_reduce = "auto"
        predictor.fit = lambda sums: fitted.append(sums) or links.Link(1, 10, "fitted", one_node=not prediction.between_nodes(sums))
        rows = [{"algorithm": "auto", "bytes": size, "median_seconds": size / 1e9} for size in (4096, 1 << 20)]
        sums = [all_reduce("all-reduce", 4, 1), all_reduce("all-reduce", 8, 2), all_reduce("network", 2, 2)]
        link, options = prediction.find_link(predictor, sums, None, rows)
        self.assertEqual((fitted, link.one_node, options[:2]), ([sums[2:]], False, ["--ranks-per-node", 4]))
        self.assertEqual(prediction.find_link(predictor, sums[:1], None, rows)[1], [])
        self.assertRaises(prediction.Failed, prediction.find_link, predictor, sums, None, rows[:1])

    def test_the_largest_number_of_ranks_judges_the_prediction(self):
        self.rewrite(self.interfere)
        for repeat in (1, 2):
            for kind in ("step", "all-reduce"):
                four = json.loads((self.out / f"raw/{kind}-2-ranks-{repeat}.json").read_text())
                four.update(ranks=4, ranks_per_node=4, machine={**four["machine"], "cores": 4})
                for row in four["result"]["rows"]:
                    row["ranks"] = 2 if kind == "all-reduce" else 4  # as the stand-in expects
                    row["compute_seconds"], row["images_per_second"] = 1e9, 2500  # not fitted
                (self.out / f"raw/{kind}-4-ranks-{repeat}.json").write_text(json.dumps(four))
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), *NETWORK)
        found = summary(self.out)["prediction"]
        self.assertEqual((found["interference"]["ranks"], found["interference"]["held_out"]), ([1, 2], 4))
        predicted = 3600 / ((1 + 3 * 0.225) * 1.55)  # 4 ranks share a node
        self.assertAlmostEqual(found["predictions"][2]["images_per_second"], predicted)
        self.assertAlmostEqual(found["predictions"][3]["images_per_second"], 2 * predicted)  # and 8 two of them
        self.assertAlmostEqual(found["errors"]["images_per_second"]["low"], predicted / 2500 - 1)
        self.assertIn(f"4 ranks, 1,387 images/s predicted, 2,500 measured (-44.5 %)", (self.out / "report.md").read_text())

    def test_the_time_to_the_same_loss(self):
        self.rewrite(self.interfere)
        results = self.folder / "results.json"
        results.write_text('{"gradient_noise": {"scale": 96, "low": 48, "high": 112}}')
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), "--noise", results,
                         *NETWORK)
        found, text = summary(self.out)["time_to_loss"], (self.out / "report.md").read_text()
        rows = {row["ranks"]: row for row in found["rows"]}
        self.assertEqual([rows[1][name] for name in ("speedup", "low", "high")], [1, 1, 1])
        # Measured: two ranks make 1000 images/s, like one, and need 32 (1 + 96/32) images instead of 16 (1 + 96/16).
        self.assertAlmostEqual(rows[2]["speedup"], 112 / 128)
        self.assertAlmostEqual(rows[2]["low"], 64 / 80)
        self.assertAlmostEqual(rows[2]["high"], 128 / 144)
        # Predicted.
        four = summary(self.out)["prediction"]["predictions"][2]
        self.assertAlmostEqual(rows[4]["speedup"], 112 / 160 * four["images_per_second"] / 1000)
        self.assertAlmostEqual(rows[4]["low"], 64 / 112 * four["images_per_second_low"] / 1000)
        # The speed is proportional to the ranks, so ranks gain until 1 + 96 / (16 N) is near 1.
        self.assertEqual(found["ranks_worth"], 128)
        self.assertRegex(text, r"128 ranks: 3.17x \[1.47, 6.21\] faster to the same loss than 1 rank; beyond 128 less than 5 %")
        results.write_text("{}")
        result = self.assert_ends(1, "report", self.out, "--noise", results)
        self.assertRegex(result.err, "study: .*results.json has no gradient noise .*--accumulate")

    def test_the_time_to_a_goal_is_predicted(self):
        self.rewrite(self.interfere)
        (self.out / "goal").mkdir()
        for ranks, seed, steps, seconds in ((1, 1, 300, 20), (1, 2, 200, 10), (2, 1, 180, 30)):
            (self.out / f"goal/{ranks}-ranks-{seed}.json").write_text(json.dumps({
                "settings": {"goal": "accuracy=0.9"}, "ranks": ranks,
                "result": {"steps": steps, "seconds": seconds, "noise": 96,
                           "evaluations": [[100, 0.1 * seed], [steps, 0.9]]}}))
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), *NETWORK)
        found = summary(self.out)["time_to_goal"]
        rows = {row["ranks"]: row for row in found["rows"]}
        speeds = {p["ranks"]: p["images_per_second"] for p in summary(self.out)["prediction"]["predictions"]}
        self.assertEqual((found["goal"], found["noise"], found["baseline_ranks"]), ("accuracy=0.9", 96, 1))
        for ranks, steps, seconds in ((1, 250, 15), (2, 180, 30), (4, None, None)):
            self.assertEqual((rows[ranks]["steps"], rows[ranks]["seconds"]), (steps, seconds))
            predicted = 250 * (1 + 96 / (16 * ranks)) / (1 + 96 / 16)
            self.assertAlmostEqual(rows[ranks]["predicted_steps"], predicted)
            self.assertAlmostEqual(rows[ranks]["predicted_seconds"], predicted * 16 * ranks / speeds[ranks])
        self.assertEqual(rows[1]["curve"], [[1600, 0.15000000000000002], [3200, 0.9], [4800, 0.9]])
        report = (self.out / "report.md").read_text()
        self.assertIn("## Time to accuracy=0.9", report)
        self.assertRegex(report, r"\| samples trained \| +1 rank \| +2 ranks \|(.*\n)+\| 1600 \| +0.15 \| +- \|\n\| 3200 \| +0.9 \| +0.1 \|\n")

        for file in (self.out / "goal").iterdir():  # an earlier study's
            training = json.loads(file.read_text())
            del training["result"]["evaluations"]
            file.write_text(json.dumps(training))
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), *NETWORK)
        self.assertEqual(summary(self.out)["time_to_goal"]["rows"][0]["seconds"], 15)
        self.assertNotIn("samples trained", (self.out / "report.md").read_text())

    def test_the_time_to_a_goal_is_trained(self):
        out = self.folder / "goal"
        command = ["--program", helper.ANNULUS, "--ranks", "1,2", "--model", "mlp", "--data", self.data, "--strong", "--batch", 20,
                   "--repeat", 1, "--seconds", "0.3", "--threads", 1, "--sizes", "4KiB,64KiB", "--out", out, "--to", "accuracy=0.5",
                   "--epochs", 3, "--train-options"]
        self.assert_ends(0, *command, "--lr 0.05")
        for row in summary(out)["time_to_goal"]["rows"][:2]:
            self.assertGreater(row["steps"], 0)
            self.assertGreater(row["seconds"], 0)
            self.assertEqual(row["predicted_steps"], summary(out)["time_to_goal"]["rows"][0]["steps"])
            self.assertEqual(row["curve"][-1][0], 20 * row["steps"])
            self.assertGreaterEqual(row["curve"][-1][1], 0.5)
        result = self.assert_ends(0, *command, "--lr 0.05")
        self.assertNotIn("seed 1", result.err)
        result = self.assert_ends(1, *command, "--lr 0.06")
        self.assertIn("was measured with other settings: train_options is", result.err)
        result = self.assert_ends(2, "--ranks", 1, "--model", "mlp", "--weak", "--batch", 16, "--out", out, "--to", "accuracy=0.5")
        self.assertIn("--to needs --data", result.err)

    def test_extra_p(self):
        """Extra-P reads the file, and models the parts if there are 5 numbers of ranks."""
        self.rewrite(self.interfere)
        file = self.folder / "extra-p.json"
        for ranks in (4, 8, 16):
            for repeat in (1, 2):
                more = json.loads((self.out / f"raw/step-2-ranks-{repeat}.json").read_text())
                more["ranks"] = ranks
                (self.out / f"raw/step-{ranks}-ranks-{repeat}.json").write_text(json.dumps(more))
        # Prints like Extra-P 4.2.5.
        models = "#!/bin/sh\necho 'step = 0.5 + 0.25 * p^(1/2) * log2(p)^(1)'\necho 'step->optimizer = 0.1'\n"
        self.stand_in("extrap", models)
        self.assert_ends(0, "report", self.out, "--extra-p", file, *NETWORK, "--program", self.stand_in("annulus", PREDICTS),
                         path=self.programs)
        found = json.loads(file.read_text())
        self.assertEqual((found["parameters"], len(found["measurements"])), (["p"], 7))
        times = {point["point"][0]: point["values"] for point in found["measurements"]["step"]["time"]}
        self.assertEqual(sorted(times), [1, 2, 4, 8, 16])
        for ranks in (1, 2):
            self.assertEqual(times[ranks], [m["result"]["rows"][0]["median_seconds"] for m in self.raw("step", ranks)])
        parts = [of["time"][1]["values"][0] for path, of in found["measurements"].items() if path != "step"]
        self.assertAlmostEqual(sum(parts), times[2][0])
        text = (self.out / "report.md").read_text()
        self.assertIn("| step | 0.5 + 0.25 * p^(1/2) * log2(p)^(1) | 192500.000 | 1.000 |", text)  # 4096 ranks
        self.assertIn("| step->optimizer | 0.1 | 100.000 | - |", text)
        self.assertRaises(ValueError, extra_p.value, "__import__('os')", 2)
        if not shutil.which("extrap"):
            self.skipTest("Extra-P is not installed: its own reading is not tested")
        done = subprocess.run(["extrap", "--json", file, "--print", "{callpath} = {model}"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.count("step->")), (0, 6), str(done))

    def test_steps_without_all_reduces_are_needed(self):
        def older(measurement):
            if measurement["kind"] == "step":
                del measurement["result"]["rows"][1:]
        self.rewrite(older)
        self.assert_ends(0, "report", self.out)
        self.assertIn("Not predicted: it needs steps of several ranks with and without", (self.out / "report.md").read_text())

    def test_predictions_of_strong_scaling_use_each_batch(self):
        def strong(measurement):
            measurement["settings"].update(scaling="strong", batch=16)
            measurement["result"]["rows"][0]["batch"] = 16 // measurement["ranks"]
        self.rewrite(strong)
        self.assert_ends(0, "report", self.out, "--program", self.stand_in("annulus", PREDICTS), *NETWORK)
        self.assertEqual([(p["ranks"], p["batch_per_rank"]) for p in summary(self.out)["prediction"]["predictions"]],
                         [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)])

    def test_as_a_job(self):
        for name, text in SLURM.items():
            self.stand_in(name, text)
        out = self.folder / "job"
        command = ["--program", helper.ANNULUS, "--ranks", "1,2", "--weak", "--batch", 16, "--repeat", 1, *SETTINGS, "--out",
                   out, "--slurm=--nodes=2 --time=5"]
        result = self.assert_ends(0, *command, path=self.programs)
        self.assertIn("submitted job 7", result.err)
        self.assertIn("--ntasks=2", (out / "sbatch-options").read_text())
        self.assertIn("--nodes=2 --time=5", (out / "sbatch-options").read_text())
        self.assertEqual([step["nodes"] for step in summary(out)["steps"]], [1, 2])
        self.assertNotIn("submitted", self.assert_ends(0, *command, path=self.programs).err)
        self.stand_in("sbatch", "#!/bin/sh\necho 8\n")
        result = self.assert_ends(1, *command, "--repeat", 2, path=self.programs)
        self.assertIn("job 8 ended, but 3 of 6 measurements are missing", result.err)

    def test_invalid_options(self):
        for wrong, word in ((("--ranks", "1,two"), "--ranks"), (("--ranks", "0"), "--ranks"), (("--batch", "0"), "--batch"),
                            (("--image", "28x28x1x1"), "--image"), (("--length", "0"), "--length"),
                            (("--image", "28x28x1", "--length", "16"), "--length"), (("--sizes", "many"), "--sizes"),
                            (("--hosts-file", "nowhere"), "nowhere"), (("--strong",), "--strong")):
            with self.subTest(wrong=wrong):
                self.assertIn(word, self.assert_ends(2, *self.command, "--out", self.folder / "new", *wrong).err)
        strategies = ["strategies", "--ranks", 1, "--model", "mlp", "--data", self.data, "--global-batch", 20, "--until", "loss=1"]
        for command in self.command, strategies:
            result = self.assert_ends(1, *command, "--out", self.folder / "new", "--program", "nowhere/annulus")
            self.assertIn("no program nowhere/annulus", result.err)

    def test_strategies(self):
        out = self.folder / "strategies"
        command = ["strategies", "--program", helper.ANNULUS, "--ranks", 2, "--model", "mlp", "--data", self.data,
                   "--global-batch", 20, "--epochs", 2, "--repeat", 2, "--threads", 1, "--out", out]
        strategies = ["--strategy", "synchronous", "--strategy", "async --staleness 2"]
        result = self.assert_ends(0, *command, *strategies, "--until", "accuracy=0.5", "--", "--lr", 0.05)
        found = json.loads((out / "strategies.json").read_text())
        self.assertEqual([row["strategy"] for row in found["rows"]], ["synchronous", "async --staleness 2"])
        for row in found["rows"]:
            self.assertGreater(min(row["seconds"]), 0)
            self.assertGreaterEqual(row["scores"], 0.5)
            self.assertLessEqual(row["epochs"], 2)
        self.assertIsNone(found["rows"][0]["staleness"])
        self.assertLessEqual(found["rows"][1]["staleness"], 2)
        self.assertEqual(len(list((out / "trainings").iterdir())), 4)
        self.assertEqual([file.name for file in out.iterdir() if file.name.startswith("run-")], [])
        self.assertRegex(result.out, r"\| 2 \| `synchronous` \| .* s \(.* to .*\) \| 1 \| [12](\.5)? \| (0\.\d+|1) \| - \|")
        # Existing trainings are not repeated; those of other settings are refused.
        result = self.assert_ends(0, *command, *strategies, "--until", "accuracy=0.5", "--", "--lr", 0.05)
        self.assertNotIn("seed", result.err)
        result = self.assert_ends(1, *command, *strategies, "--until", "accuracy=0.5", "--", "--lr", 0.06)
        self.assertIn("was measured with other settings: train_options is", result.err)

    def test_strategies_that_fail_or_miss_the_goal(self):
        out = self.folder / "strategies"
        command = ["strategies", "--program", helper.ANNULUS, "--ranks", 2, "--model", "mlp", "--data", self.data,
                   "--global-batch", 20, "--epochs", 1, "--repeat", 2, "--threads", 1, "--out", out, "--until", "loss=1e-9"]
        result = self.assert_ends(1, *command, "--strategy", "local --sync-every 5", "--strategy", "none")
        self.assertRegex(result.out, r"`local --sync-every 5` \| [\d,]+ \| not in 1 epoch \| 1 \| 1 \|")
        self.assertRegex(result.err, "none, 2 ranks, seed 1: FAILED, its other seeds are skipped: .*none")
        row, = json.loads((out / "strategies.json").read_text())["rows"]
        self.assertEqual(row["seconds"], [None, None])

    def make(self, name, factor=1.0, repeats=5, change=lambda measurement: None, spread=0.001):
        """A study made from measurements: repeats `spread` apart, all scaled."""
        out = self.folder / name
        (out / "raw").mkdir(parents=True)
        for ranks in (1, 2):
            measurement = self.raw("step", ranks)[0]
            for repeat in range(1, repeats + 1):
                measurement["result"]["rows"][0]["images_per_second"] = 1000 * ranks * factor * (1 + spread * repeat)
                change(measurement)
                (out / f"raw/step-{ranks}-ranks-{repeat}.json").write_text(json.dumps(measurement))
        return out

    def test_compare_same_slower_and_faster(self):
        a = self.make("a")
        same = self.assert_ends(0, "compare", a, a).out
        self.assertEqual(same.count("| no slower |"), 2)
        self.assertIn("B is nowhere slower", same)
        slower = self.assert_ends(1, "compare", a, self.make("slower", 0.9)).out
        self.assertEqual(slower.count("| REGRESSION |"), 2)
        self.assertIn("| 0.900 [", slower)
        self.assertIn("| 0.0159 |", slower)  # 2/252, and twice that of two numbers of ranks
        self.assertIn("B is slower with 2 of 2", slower)
        self.assertEqual(self.assert_ends(0, "compare", a, self.make("faster", 1.1)).out.count("| faster |"), 2)
        self.assert_ends(0, "compare", a, self.folder / "slower", "--threshold", "11%")

    def test_compare_is_inconclusive_without_a_narrow_interval(self):
        a, wide = self.make("a"), self.make("wide", 0.9, spread=0.08)  # 0.97 to 1.26 of 1.001 to 1.005
        found = self.assert_ends(2, "compare", a, wide).out
        self.assertEqual(found.count("| inconclusive |"), 2)
        self.assertIn("Inconclusive with 2 of 2 numbers of ranks: B may be slower", found)
        self.assert_ends(0, "compare", a, wide, "--threshold", "4%")  # the lowest repeat is 3.0 % below A's median
        self.assert_ends(2, "compare", a, self.make("below", 0.97, spread=0.01))  # 0.98 to 1.02
        # One significant regression decides, whatever the others are.
        for file in (wide / "raw").glob("step-2-*"):
            shutil.copy(self.make(f"slow{file.stem}", 0.5) / "raw" / file.name, file)
        mixed = self.assert_ends(1, "compare", a, wide).out
        self.assertEqual((mixed.count("| inconclusive |"), mixed.count("| REGRESSION |")), (1, 1))

    def test_compare_refuses_different_settings(self):
        def other_batch(measurement):
            measurement["result"]["rows"][0]["batch"] = 32

        def other_processor(measurement):
            measurement["machine"]["processor"] = "abacus"
        a, batch, processor = self.make("a"), self.make("b", 0.9, 5, other_batch), self.make("c", 0.9, 5, other_processor)
        self.assertIn("batch 16 and 32", self.assert_ends(2, "compare", a, batch).out)
        self.assertIn("abacus", self.assert_ends(2, "compare", a, processor).out)
        self.assertIn("Different with 1 rank: processor", self.assert_ends(1, "compare", a, processor, "--force").out)
        self.assertIn("cannot show any difference", self.assert_ends(2, "compare", a, self.make("few", 0.5, 2)).out)
        self.assertIn("has no measured step", self.assert_ends(2, "compare", a, self.programs).out)
        (self.programs / "torn.json").write_text('{"rows": [')
        (self.programs / "other.json").write_text('{"answer": 42}')
        for file in ("torn.json", "other.json", "absent.json"):
            self.assertIn(file, self.assert_ends(2, "compare", a, self.programs / file).out)
        for file in (a / "raw").glob("step-1-*"):
            file.unlink()
        for file in (batch / "raw").glob("step-2-*"):
            file.unlink()
        self.assertIn("no number of ranks was measured in both", self.assert_ends(2, "compare", a, batch).out)

    def test_compare_accepts_tables_of_bench_step(self):
        folders = [self.folder / name for name in "ab"]
        for folder, factor in zip(folders, (1, 0.5)):
            folder.mkdir()
            for repeat in range(5):
                table = self.raw("step", 1)[0]["result"]
                table["rows"][0]["images_per_second"] = factor * (100 + repeat)
                (folder / f"{repeat}.json").write_text(json.dumps(table))
        self.assert_ends(1, "compare", *folders)
        self.assert_ends(0, "compare", *reversed(folders))
        self.assert_ends(2, "compare", folders[0] / "0.json", folders[1] / "0.json")


class BusyMachine(unittest.TestCase):
    def ask(self, busy_share, even_if_busy=False, answer=None):
        """What is printed, and the exit status; `answer`: on a terminal, or None."""
        times = [{"work": work, "steal": 0, "all": every} for work, every in ((0, 0), (busy_share, 1))]
        terminal = io.StringIO(answer)
        terminal.isatty = lambda: answer is not None
        with mock.patch.object(noise, "processor_times", side_effect=times), mock.patch("sys.stdin", terminal), \
                contextlib.redirect_stderr(io.StringIO()) as printed:
            try:
                noise.expect_quiet(even_if_busy)
            except SystemExit as end:
                return printed.getvalue(), end.code
        return printed.getvalue(), 0

    def test_is_refused_without_a_terminal_and_asked_for_on_one(self):
        self.assertEqual(self.ask(0.1), ("", 0))
        self.assertEqual(self.ask(0.9, even_if_busy=True), ("", 0))
        text, status = self.ask(0.9)
        self.assertRegex(text, r"other programs use 90% of this machine's processors .*: end them, or give --even-if-busy")
        self.assertEqual(status, 1)
        for answer, status in (("y\n", 0), ("n\n", 1), ("", 1)):
            text, found = self.ask(0.9, answer=answer)
            self.assertIn("Measure nevertheless? [y/N]", text)
            self.assertEqual(found, status)


class PublishedCurves(unittest.TestCase):
    def test_the_last_point_follows_from_the_first_two(self):
        # 2 s of computing, and 1 s times 2 (N - 1) / N of communication.
        weak = {"quantity": "images/s", "units": [1, 2, 8]}
        weak["values"] = [10 * n / (2 + 2 * (n - 1) / n) for n in weak["units"]]
        self.assertAlmostEqual(published.predict_last(weak), weak["values"][-1])
        strong = {"quantity": "minutes", "units": [2, 4, 8], "values": [8 / n + 2 * (n - 1) / n for n in (2, 4, 8)]}
        self.assertAlmostEqual(published.predict_last(strong), strong["values"][-1])
        self.assertAlmostEqual(published.predict_last({"quantity": "images/s", "units": [1, 2, 4], "values": [10, 21, 40]}), 40)

    def test_the_table_is_current(self):
        root = SCRIPT.parents[1]
        done = subprocess.run([SCRIPT.parent / "scaling/published.py", root / "tests/data/published_curves.json"],
                              capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, (root / "scripts/results/published-curves.md").read_text())
        self.assertIn("Within 10%: 8 of 10.", done.stdout)


class Estimates(unittest.TestCase):
    def test_intervals_of_medians(self):
        for count, places, confidence in ((2, (1, 2), 0.5), (5, (1, 5), 0.9375), (6, (1, 6), 0.96875), (8, (1, 8), 0.9921875),
                                          (9, (2, 8), 0.9609375), (20, (6, 15), 0.958610534667969)):
            interval = estimates.median_interval(range(count, 0, -1))
            self.assertEqual((interval.low, interval.high), places)
            self.assertAlmostEqual(interval.confidence, confidence, places=12)
        self.assertEqual(estimates.median_interval([7]), estimates.Interval(7, 7, 0))

    def test_mann_whitney(self):
        for a, b, p in (([1, 2, 3], [4, 5, 6], 2 / 20), ([6, 7, 8, 9, 10], [1, 2, 3, 4, 5], 2 / 252),
                        ([1, 2, 3, 5], [4, 6, 7, 8], 4 / 70), ([1, 2, 5], [3, 4, 6, 7], 8 / 35),
                        ([1, 4], [2, 3], 1), ([1, 1], [1, 1, 1], 1), ([1, 2], [2, 3], 4 / 6)):
            self.assertAlmostEqual(estimates.mann_whitney(a, b), p)
            self.assertAlmostEqual(estimates.mann_whitney(b, a), p)
        self.assertAlmostEqual(estimates.mann_whitney(range(10), range(10, 20)),
                               estimates.least_p(range(10), range(10)))

    def test_holm(self):
        for p, adjusted in (([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.6], [1, 1]), ([0.02], [0.02])):
            for found, expected in zip(estimates.holm(p), adjusted):
                self.assertAlmostEqual(found, expected)

    def test_intervals_of_ratios(self):
        self.assertEqual(estimates.ratio_interval([3, 3], [2, 2, 2]), estimates.Interval(1.5, 1.5, 0.95))
        # The minimum of 3 is the median of a resample with probability 7/27, which is more than 2.5 %, at both ends.
        self.assertEqual(estimates.ratio_interval([1, 2, 4], [1, 1]), estimates.Interval(1, 4, 0.95))
        self.assertEqual(estimates.ratio_interval([1, 2, 4], [1]).confidence, 0)
        self.assertEqual(estimates.ratio_interval([1, 5, 2, 8], [3, 4, 9]), estimates.ratio_interval([1, 5, 2, 8], [3, 4, 9]))


if __name__ == "__main__":
    helper.main()
