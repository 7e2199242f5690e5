"""Ranks with inconsistent options or data do not start."""
import helper
from helper import command, run


class Consistency(helper.ProgramTest):
    def refused(self, *cases):
        """Runs two groups of ranks, each (number, command line), under one mpirun. `cases`: (message, first, second)."""
        def start(case):
            _, first, second = case
            return run(*second[1], prefix=command(first[1], first[0]) + [":", "-np", str(second[0])])
        for (message, *_), result in helper.at_once(start, cases):
            with self.subTest(message):
                self.assertEqual(result.status, 1, str(result))
                self.assertLess(result.seconds, 10)
                self.assertEqual(len(result.messages), 1, str(result))
                self.assertRegex(result.messages[0], message)

    def differ(self, *cases):
        """Trains with two groups of ranks, each (number, differing options). `cases`: (message, first, second)."""
        outs = [self.folder / f"out-{number}" for number in range(len(cases))]
        self.refused(*((message, *((count, self.training(out, **options)) for count, options in groups))
                       for out, (message, *groups) in zip(outs, cases)))
        self.assertEqual([out for out in outs if out.exists()], [], "they began to write")

    def test_options(self):
        self.differ((r"--lr is 0\.1 on rank 0, but 0\.2 on rank 1", (1, {"lr": 0.1}), (1, {"lr": 0.2})),
                    (r"--model is .*lenet.* on rank 0, but .*mlp.* on rank 1", (1, {"model": "lenet"}), (1, {})),
                    (r"--bucket .* on rank 1", (1, {"bucket": "8KiB"}), (1, {})),
                    (r"--all-reduce .* on rank 1", (1, {"all_reduce": "mpi"}), (1, {})),
                    (r"--batch is 20 on rank 0, but 21 on rank 1", (1, {}), (1, {"batch": 21})),
                    (r"--resume is false on rank 0, but true on rank 1", (1, {}), (1, {"resume": True})))

    def test_all_ranks_that_differ_are_named(self):
        self.differ((r"--seed is 7 on rank 0, but 8 on ranks 1 and 2$", (1, {}), (2, {"seed": 8})),
                    (r"--seed is 7 on rank 0, but 8 on rank 2$", (2, {}), (1, {"seed": 8})))

    def test_data(self):
        def other(**options):
            name, = options
            return (1, {"data": helper.write_data(self.folder / f"{name}.h5", **options)})
        self.differ((r"number of training images is 500 on rank 0, but 501 on rank 1", (1, {}), other(train=501)),
                    (r"number of test images is 100 on rank 0, but 99 on rank 1", (1, {}), other(test=99)),
                    (r"size of .* images is 28x28x1 on rank 0, but 20x20x1 on rank 1", (1, {}), other(size=20)))

    def test_content_of_data(self):
        def change(what, index, value):
            path = helper.write_data(self.folder / f"{what.replace('/', '-')}.h5")
            with helper.h5py.File(path, "a") as file:
                if what in file:
                    file[what][index] = value
                else:
                    values = list(file.attrs[what])
                    values[index] = value
                    file.attrs[what] = values
            return (1, {"data": path})
        other_label = 3 if self.label(7) != 3 else 4
        self.differ((r"training labels .* rank 1", (1, {}), change("train/labels", 7, other_label)),
                    (r"training images .* rank 1", (1, {}), change("train/images", 0, 255)),
                    (r"test images .* rank 1", (1, {}), change("test/images", 0, 255)),
                    (r"mean .* rank 1", (1, {}), change("mean", 0, 0.25)),
                    (r"classes .* rank 1", (1, {}), change("classes", 3, "a cat")))

    def label(self, sample):
        with helper.h5py.File(self.data, "r") as file:
            return file["train/labels"][sample]

    def test_another_command(self):
        checkpoint = self.folder / "done" / "checkpoint.h5"
        self.train(checkpoint.parent, max_steps=1)
        self.refused((r"the command is train on rank 0, but eval on rank 1", (1, self.training(self.folder / "out")),
                      (1, ["eval", "--data", self.data, "--checkpoint", checkpoint])),
                     (r"the command is bench step on rank 0, but bench all-reduce on rank 1", (1, ["bench", "step"]),
                      (1, ["bench", "all-reduce"])))

    def test_predictions(self):
        out = self.folder / "done"
        self.train(out, max_steps=1)
        line = ["predict", "--checkpoint", out]
        other = helper.write_data(self.folder / "other.h5")
        self.refused(*((message, (1, [*line, self.data]), (1, line + words)) for words, message in (
            ([self.data, "--top", 3], r"--top is 5 on rank 0, but 3 on rank 1$"),
            ([f"{self.data}:train"], r"the number of images is 100 on rank 0, but 500 on rank 1$"),
            ([self.data, self.data], r"the number of sources of images is 1 on rank 0, but 2 on rank 1$"),
            ([other], r"a hash of the images' names .* rank 1"))))

    def test_benchmarks(self):
        step = ["bench", "step", "--model", "mlp", "--seconds", 0.1]
        all_reduce = ["bench", "all-reduce", "--seconds", 0.1]
        noise = ["bench", "noise"]
        timeline = self.folder / "timeline.json"
        self.refused(*((message, (1, line), (1, line + words)) for line, words, message in (
            (step, ["--batch", 8], r"--batch is 64 on rank 0, but 8 on rank 1$"),
            (step, ["--bucket", "8KiB"], r"--bucket .* on rank 1$"),
            (step, ["--image", "20x20x1"], r"--image .* on rank 1$"),
            (step, ["--all-reduce", "auto,none"], r"--all-reduce .* on rank 1$"),
            (step, ["--timeline", timeline], r"--timeline.* is false on rank 0, but true on rank 1$"),
            (noise, ["--step", 2], r"--step is 4 on rank 0, but 2 on rank 1$"),
            (noise, ["--seconds", 0.2], r"--seconds is 3 on rank 0, but 0.2 on rank 1$"),
            (all_reduce, ["--sizes", "4KiB"], r"--sizes .* on rank 1$"),
            (all_reduce, ["--algorithms", "mpi"], r"--algorithms .* on rank 1$"),
            (all_reduce, ["--wire", "bf16"], r"--wire is .*fp32.* on rank 0, but .*bf16.* on rank 1$"))))
        # Only rank 0 writes this file.
        prefix = command(all_reduce + ["--sizes", "4KiB", "--json", self.folder / "a.json"], 1) + [":", "-np", "1"]
        result = run(*all_reduce, "--sizes", "4KiB", prefix=prefix)
        self.assertEqual(result.status, 0, str(result))

    def test_machine_specific_options_may_differ(self):
        data = helper.write_data(self.folder / "copy.h5")
        prefix = command(self.training(self.folder / "out", max_steps=2), 1) + [":", "-np", "1"]
        options = {"data": data, "threads": 2, "max_steps": 2}
        result = run(*self.training(self.folder / "elsewhere", **options), prefix=prefix)
        self.assertEqual(result.status, 0, str(result))


if __name__ == "__main__":
    helper.main()
