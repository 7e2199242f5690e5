"""The number of ranks does not affect the mathematics: with the same global batch, any world makes the same steps."""
import helper

# Parameters after ten steps, relative to their norm. All-reduces add the same numbers in another order, each rounded
# to float32's 6e-8; ten steps of momentum amplify that. A gradient with a wrong weight on one rank, or a missing
# sample, gives 1e-3 or more (test_tolerance_can_fail).
TOLERANCE = 2e-5


class Trajectory(helper.ProgramTest):
    def steps(self, name, ranks, model, **options):
        out = self.folder / name
        self.train(out, ranks=ranks, model=model, max_steps=10, epochs=2, **options)
        return out / "checkpoint.h5"

    def test_ranks_do_not_matter(self):
        for model in ("mlp", "lenet"):
            one = self.steps(f"{model}-1", 0, model, global_batch=62)  # the ninth step is short: 500 = 8 x 62 + 4
            for ranks in (2, 3, 4):
                with self.subTest(model=model, ranks=ranks):
                    other = self.steps(f"{model}-{ranks}", ranks, model, global_batch=62)
                    self.assertLess(self.farthest(one, other), TOLERANCE)

    def test_batch_and_global_batch_are_equivalent(self):
        a = self.steps("batch", 2, "mlp", batch=31)
        b = self.steps("global", 2, "mlp", global_batch=62)
        self.assert_same_state(a, b)

    def test_tolerance_can_fail(self):
        a = self.steps("62", 2, "mlp", global_batch=62)
        b = self.steps("61", 2, "mlp", global_batch=61)
        self.assertGreater(self.farthest(a, b), 10 * TOLERANCE)


if __name__ == "__main__":
    helper.main()
