"""With --verify, flipped bits are found; with --survive, too, the run ends with the same bits nevertheless."""
import json

import helper
from helper import run

RECOVERY = {"OMPI_MCA_orte_enable_recovery": "1", "ANNULUS_REPORT_STATUS": "1"}
RUN = {"model": "lenet", "shards": 6, "global_batch": 48, "epochs": 3, "checkpoint_every": 100, "eval_every": 100, "ema": 0.9,
       "metrics_every": 1, "verify": True}
STEPS = 33


class Verify(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = cls.shared / "undisturbed"
        result = run(*cls.training(cls.undisturbed, **{**RUN, "verify": None}))
        assert result.status == 0, str(result)

    def inject(self, out, *flips, ranks=3, **options):
        faults = [word for flip in flips for word in ("--inject", f"flip:{flip}")]
        return run(*self.training(out, **{**RUN, **options}), *faults, ranks=ranks,
                   environment=RECOVERY if options.get("survive") else None)

    def test_a_flipped_bit_ends_the_run_with_a_line(self):
        who, both = r"rank 1 on .* \(core \d+\) does not have .*", r"ranks 0 on .*, 1 on .* differ, and no majority .*"
        for number, (flip, ranks, line) in enumerate((
                ("rank=1,step=5,in=bucket,bucket=0,element=70", 3, rf"step 5: the sums .* bucket 1 of \d+: {who}"),
                ("rank=1,step=5,in=bucket,element=2,bit=30", 3, rf"step 5: the sums .* bucket 1 of \d+: {who}"),  # a control flag
                ("rank=1,step=5,in=bucket,element=20,bit=30", 3, rf"step 5: .*: {who}"),
                ("rank=1,step=5,bit=0", 3, rf"step \d+: the replicas differ, first in fc3.weight: {who}"),
                ("rank=1,step=5,in=state,bit=22", 3, rf"step \d+: the replicas differ, first in .*: {who}"),
                ("rank=1,step=5,in=average", 2, rf"step \d+: the replicas differ, first in the moving average of .*: {both}"))):
            with self.subTest(flip=flip):
                result = self.inject(self.folder / str(number), flip, ranks=ranks)
                self.assertEqual(result.status, 1, str(result))
                message, = result.messages
                self.assertRegex(message, rf"^annulus: {line}; suspect .*, and resume from a checkpoint, if there is one$")

    def assert_repeated(self, out, result, ranks, lost=0):
        self.assertEqual(result.messages, ["annulus: the job survives lost ranks",
                                           f"annulus: the job ends with status 0, ranks lost: {lost}"], str(result))
        self.assert_same_state(out / "checkpoint.h5", self.undisturbed / "checkpoint.h5")
        results = json.loads((out / "results.json").read_text())
        self.assertEqual([flip["ranks"] for flip in results["flips"]], ranks)
        steps = [record["step"] for record in helper.metrics(out) if record["kind"] == "train"]
        self.assertEqual((steps, steps[-1]), (sorted(set(steps)), STEPS))
        return results

    def test_steps_are_repeated(self):
        for number, (flips, ranks, named) in enumerate((
                (["rank=1,step=9,in=bucket,bucket=0,element=99"], 3, [[1]]),
                (["rank=0,step=9,in=bucket,element=20,bit=30"], 3, [[0]]),  # the loss
                (["rank=2,step=9,bit=3"], 3, [[2]]), (["rank=0,step=5,in=state,bit=22"], 3, [[0]]),
                (["rank=1,step=6,bit=30"], 3, [[1]]),  # training diverges
                (["rank=0,step=5,in=average", "rank=1,step=24,in=bucket"], 2, [[0, 1], [0, 1]]))):
            with self.subTest(flips=flips):
                out = self.folder / str(number)
                result = self.inject(out, *flips, ranks=ranks, survive=True)
                self.assert_repeated(out, result, named)
                self.assertIn("all ranks repeat what follows step", result.out)

    def test_a_rank_whose_bits_flip_again_is_excluded(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                out = self.folder / str(rank)
                result = self.inject(out, f"rank={rank},step=9,in=bucket,times=2", survive=True)
                results = self.assert_repeated(out, result, [[rank], [rank]], lost=1)
                loss, = results["losses"]
                self.assertEqual((loss["rank"], loss["excluded"]), (rank, True))

    def test_if_nobody_knows_which_rank_is_wrong_the_second_time_ends_the_run(self):
        result = self.inject(self.folder / "out", "rank=1,step=9,in=bucket,times=2", ranks=2, survive=True)
        *errors, status = result.messages[1:]
        self.assertTrue(errors and all("no majority shows which is right" in line for line in errors), str(result))
        self.assertEqual(status, "annulus: the job ends with status 1, ranks lost: 0")

    def test_a_rank_that_computes_wrong(self):
        """All ranks have the same wrong weights when it is noticed, so older ones are restored."""
        steps = {"epochs": 100, "max_steps": 210, "eval_every": 1000}
        undisturbed = self.folder / "undisturbed"
        self.train(undisturbed, **{**RUN, **steps})
        out = self.folder / "out"
        arguments = [*self.training(out, **{**RUN, **steps}, survive=True), "--inject", "wrong:rank=1,step=120"]
        result = run(*arguments, ranks=3, environment=RECOVERY)
        self.assertEqual(result.messages[-1], "annulus: the job ends with status 0, ranks lost: 1", str(result))
        results = json.loads((out / "results.json").read_text())
        self.assertEqual([flip["ranks"] for flip in results["flips"]], [[1], [1]])
        self.assertEqual(results["flips"][0]["found_after_step"], 200)
        self.assertRegex(results["flips"][0]["finding"], r"rank 1 on .* \(core \d+\) computes other gradients than both neighbours;")
        self.assert_same_state(out / "checkpoint.h5", undisturbed / "checkpoint.h5")
        result = run(*self.training(self.folder / "two", **{**RUN, **steps}), "--inject", "wrong:rank=1,step=120", ranks=2)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], r"ranks 0 on .*, 1 on .* compute different gradients, and nothing shows which")

    def test_where_it_costs_next_to_nothing_it_is_on(self):
        large = {"model": "resnet20", "global_batch": 512, "shards": None, "ema": None, "threads": 1, "epochs": 4}
        for options, verifies in (({}, True), ({"verify=false": True}, False), ({"model": "lenet"}, False),
                                  ({"strategy": "sharded"}, False)):
            with self.subTest(options):
                out = self.folder / str(verifies)
                result = self.inject(out, "rank=1,step=2,in=bucket,element=70", ranks=2, overwrite=True,
                                     **{**large, "verify": None, **options})
                self.assertEqual("step 2: the sums" in result.err, verifies, str(result))
                self.assertEqual("  verified    sums in every step" in result.out, verifies, str(result))

    def test_nothing_changes_without_flips(self):
        self.train(self.folder / "out", ranks=2, **RUN)
        self.assert_same_state(self.folder / "out" / "checkpoint.h5", self.undisturbed / "checkpoint.h5")
        options = {"epochs": 1, "global_batch": 50, "optimizer": "adamw", "lr": 0.001}
        for name, other in (("plain", {}), ("defer", {"defer": 0.5, "bucket": "64KiB"}), ("parts", {"accumulate": 3}),
                            ("clip", {"clip_norm": 0.1}), ("muon", {"optimizer": "muon"})):
            with self.subTest(name):
                for verify in (None, True):
                    self.train(self.folder / f"{name}-{verify}", ranks=2, verify=verify, **{**options, **other})
                self.assert_same_state(*(self.folder / f"{name}-{verify}" / "checkpoint.h5" for verify in (None, True)))


if __name__ == "__main__":
    helper.main()
