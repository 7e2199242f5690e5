"""With --pipeline, two ranks train a network in a memory limit that a rank with the whole network exceeds."""
import json

import helper

TIMEOUT = 180


class Memory(helper.ProgramTest):
    def run_in(self, kibibytes, out, stages, **options):
        """Trains with a limit for each process's own memory: of the address space, much is only reserved."""
        arguments = self.training(self.folder / out, accumulate=8, eval_steps=1, pipeline=stages, **options)
        return helper.run(*arguments, ranks=stages, timeout=TIMEOUT,
                          prefix=("bash", "-c", f'ulimit -d {kibibytes} && exec "$@"', "bash"))

    def check(self, kibibytes, steps, **options):
        """Trains by a pipeline, from step to step of `steps`, and without limit by one rank. Returns their folders.

        The limit lies between what either needs: the cut depends on measured times.
        """
        alone = self.run_in(kibibytes, "alone", 1, max_steps=1, **options)
        self.assertEqual(alone.status, 1, str(alone))
        self.assertRegex("\n".join(alone.messages), r"^annulus: (not enough memory|cannot allocate \d+ bytes of memory): "
                                                    r"use a smaller .*model$")
        for step in steps:
            piped = self.run_in(kibibytes, "piped", 2, max_steps=step, resume=step > steps[0] or None, **options)
            self.assertEqual(piped.status, 0, str(piped))
        whole = self.run_in("unlimited", "whole", 1, max_steps=steps[-1], **options)
        self.assertEqual(whole.status, 0, str(whole))
        return self.folder / "whole", self.folder / "piped"

    def test_resnet152(self):
        outs = self.check(1300000, (1, 2), model="resnet152", batch=16)
        self.assert_same_state(*(out / "checkpoint.h5" for out in outs))

    def test_gpt2(self):
        outs = self.check(2000000, (1,), model="gpt2", data=self.import_texts(), length=32, batch=8, optimizer="adamw",
                          lr=0.0001, clip_norm=1)
        whole, piped = (json.loads((out / "results.json").read_text())["validation_loss"] for out in outs)
        self.assertAlmostEqual(piped, whole, delta=1e-3 * whole)


if __name__ == "__main__":
    helper.main()
