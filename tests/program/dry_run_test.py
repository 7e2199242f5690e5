"""train --dry-run: what a run would do and need, without writing anything, and every refusal of the run itself."""
import helper


def state_of(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


class DryRun(helper.ProgramTest):
    def dry_run(self, out, ranks=0, **options):
        return self.succeed(*self.training(out, dry_run=True, **options), ranks=ranks)

    def test_a_new_run(self):
        out = self.folder / "out"
        result = self.dry_run(out, ranks=3, epochs=3, global_batch=50, schedule="cosine", lr=0.5, timeline=self.folder / "t")
        self.assertEqual(state_of(self.folder), {})
        self.assertIn("  samples     500 in 10 steps an epoch; 30 steps in all\n", result.out)
        self.assertIn("  shares      17 on ranks 0-1, 16 on rank 2\n", result.out)
        steps, rates = (line.split() for line in result.out.splitlines()[-4:-2])
        self.assertEqual(steps, ["rate", "at", "step", "1", "4", "8", "11", "15", "19", "22", "26", "30"])
        self.assertEqual((rates[0], rates[1], len(rates)), ("rate", "0.5", 10))
        self.assertEqual(rates[1:], sorted(rates[1:], key=float, reverse=True))
        self.assertRegex(result.out, r"\n  memory      at most [\d.]+ MiB \(rank [012]\), resident in these steps\n"
                         r"  time        [\d.]+ s for 30 steps of [\d.]+ ms \(median of \d+ steps after 3, [\d.]+ to [\d.]+\), "
                         r"without evaluations and checkpoints\n$")

    def test_the_rest_of_a_run(self):
        out = self.folder / "out"
        self.train(out, max_steps=4)
        before = state_of(out)
        result = self.dry_run(out, epochs=2, max_steps=7, resume=True, weights="random")
        self.assertIn("  samples     500 in 25 steps an epoch; 3 steps are left\n", result.out)
        self.assertRegex(result.out, r"  time .* for 3 steps of .* \(median of 1 steps after 2, ")
        self.assertIn("nothing to do: this run is complete after 4 steps",
                      self.dry_run(out, max_steps=4, resume=True).out)
        self.assertEqual(state_of(out), before)

    def test_what_a_run_refuses_a_dry_run_refuses(self):
        trained, foreign, file = self.folder / "trained", self.folder / "foreign", self.folder / "file"
        self.train(trained, max_steps=1)
        foreign.mkdir()
        (foreign / "a").touch()
        file.touch()
        cases = [{"out": trained}, {"out": foreign}, {"out": file / "out"}, {"model": "none"}, {"until": "top5=0"},
                 {"data": self.folder / "none.h5"}, {"global_batch": 1}, {"timeline": foreign}, {"out": trained, "resume": True,
                                                                                                   "seed": 8}]

        def both(case):
            number, change = case
            options = {"out": self.folder / f"out-{number}", **change}
            return [helper.run(*self.training(dry_run=dry, **options), ranks=2) for dry in (None, True)]
        for (_, change), (run, dry) in helper.at_once(both, enumerate(cases)):
            with self.subTest(change=change):
                self.assertEqual((dry.status, dry.messages), (run.status, run.messages), str(dry))
                self.assertNotEqual(dry.status, 0)
                self.assertEqual(len(dry.messages), 1)

    def test_options_that_write_are_refused(self):
        for option, value in (("json", "-"), ("tune", self.folder / "plans.json")):
            result = helper.run(*self.training(self.folder / "out", dry_run=True, **{option: value}))
            self.assertEqual((result.status, len(result.messages)), (2, 1), str(result))
            self.assertRegex(result.messages[0], f"--dry-run .*--{option}.*: remove one of them")


if __name__ == "__main__":
    helper.main()
