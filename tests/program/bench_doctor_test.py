"""The doctor and the benchmarks: they run, and their numbers are consistent."""
import json
import os

import helper

PROCESSORS = len(os.sched_getaffinity(0))


class Doctor(helper.ProgramTest):
    def test_reports_the_machine(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.succeed("doctor", ranks=ranks)
                for word in ("Open MPI", "HDF5", "oneDNN", "subnormals    flushed to zero in all threads"):
                    self.assertEqual(result.out.lower().count(word.lower()) > 0, True, f"{word}\n{result}")
                self.assertRegex(result.out, "(?m)^  local         if the network is slow, or some ranks are$")


class Threads(helper.ProgramTest):
    def test_the_source_of_their_number(self):
        for environment, line in (({"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "2"}, r"1 \(OMP_NUM_THREADS\)"),
                                  ({"OMP_NUM_THREADS": "", "SLURM_CPUS_PER_TASK": "1"}, r"1 \(SLURM_CPUS_PER_TASK\)"),
                                  ({"OMP_NUM_THREADS": ""}, rf"{PROCESSORS} \(affinity mask\)")):
            with self.subTest(line):
                out = self.succeed("doctor", environment=environment).out
                self.assertRegex(out, rf"(?m)^  threads +{line}; 1 rank on this node: \d+ threads? on {PROCESSORS} processors?$")
                self.assertNotRegex(out, "warning: .*threads")

    def test_more_than_processors_give_a_warning(self):
        crowd = rf"(?m)^  warning +2 ranks on .* compute with {2 * PROCESSORS} threads on {PROCESSORS} processor"
        arguments = self.training(self.folder / "crowd", threads=PROCESSORS, max_steps=1)
        self.assertRegex(self.succeed(*arguments, ranks=2).out, crowd)
        omp = {"OMP_NUM_THREADS": str(PROCESSORS + 1)}
        arguments = self.training(self.folder / "omp", threads=None, max_steps=1)
        out = self.succeed(*arguments, environment=omp).out
        self.assertRegex(out, rf"(?m)^  warning +OMP_NUM_THREADS asks for {PROCESSORS + 1} threads, .* allows {PROCESSORS}")
        self.assertRegex(out, rf": mlp on 1 rank, cpu, {PROCESSORS} thread")
        out = self.succeed(*self.training(self.folder / "alone", threads=1, max_steps=1)).out
        self.assertRegex(out, r"(?m)^  threads +1 \(--threads\); 1 rank on this node: 1 thread on")
        self.assertNotIn("warning", out)


class Bench(helper.ProgramTest):
    def table(self, *arguments, ranks):
        file = self.folder / "bench.json"
        self.succeed("bench", *arguments, "--json", file, ranks=ranks)
        return json.loads(file.read_text())

    def rows(self, *arguments, ranks):
        return self.table(*arguments, ranks=ranks)["rows"]

    def test_step(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                table = self.table("step", "--model", "lenet", "--batch", 16, "--seconds", 1, ranks=ranks)
                row, = table["rows"]
                self.assertEqual((row["model"], row["batch"], row["ranks"]), ("lenet", 16, max(ranks, 1)))
                expected = 16 * max(ranks, 1) / row["median_seconds"]
                self.assertAlmostEqual(row["images_per_second"], expected, delta=0.01 * expected)
                flops = 3 * 2 * 416_520  # multiply-adds of LeNet's layers
                self.assertAlmostEqual(row["mfu"] / (row["images_per_second"] * flops / table["peak_flops_per_second"]), 1)
                self.assertTrue(0 < row["mfu"] < 1.05, row["mfu"])

    def test_a_step_larger_than_memory(self):
        result = helper.run("bench", "step", "--device", "cpu", "--model", "cnn", "--batch", 10_000_000)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"takes at least [\d.]+ GiB of memory with a batch of 10000000 images of 28x28x1, "
                                             r"and this machine has [\d.]+ GiB: use a smaller --batch \(or train --accumulate\)")
        self.assertLess(result.seconds, 10)

    def test_tuning_is_for_gpus(self):
        result = self.succeed("bench", "step", "--device", "cpu", "--model", "mlp", "--batch", 2, "--seconds", 0.01, "--tune",
                              self.folder / "tune.json")
        self.assertEqual(result.messages, ["annulus: --tune has no effect on a CPU"])
        self.assertRegex(result.out, r"^planned: about [\d.]+ [KMG]iB of memory on each rank\n")

    def test_step_of_a_trained_state(self):
        out = self.folder / "out"
        self.train(out, model="mlp", max_steps=3)
        for place in (out, out / "checkpoint.h5"):
            file = self.folder / "trained.json"
            result = self.succeed("bench", "step", "--from", place, "--batch", 4, "--seconds", 0.01, "--json", file)
            self.assertIn("of sgd after 3 steps, from", result.out)
            found = json.loads(file.read_text())
            self.assertEqual((found["trained_steps"], found["rows"][0]["model"]), (3, "mlp"))
        result = helper.run("bench", "step", "--from", out, "--model", "lenet", ranks=2)
        self.assertNotEqual(result.status, 0)
        self.assertIn("is of mlp for images of 28x28x1 and 10 classes: remove --model", result.messages[0])

    def test_step_reports_its_memory(self):
        def peak(batch):
            file = self.folder / "memory.json"
            result = self.succeed("bench", "step", "--model", "resnet20", "--image", "32x32x3", "--batch", batch, "--seconds",
                                  0.01, "--threads", 1, "--json", file)
            self.assertRegex(result.out, r"at most [0-9.]+ [MG]iB of memory on any rank")
            return json.loads(file.read_text())["peak_memory_bytes"]
        # The activations of one image that convolutions and batch norms keep for backward, and little more.
        image = (peak(36) - peak(4)) / 32
        kept = 2 * (7 * 16 * 32 * 32 + 6 * 32 * 16 * 16 + 6 * 64 * 8 * 8) * 4
        self.assertGreater(image, 0.8 * kept)
        self.assertLess(image, 1.3 * kept)

    def test_gradients_that_ranks_share_count_once(self):
        def peak(all_reduce):
            file = self.folder / "memory.json"
            self.succeed("bench", "step", "--model", "mlp", "--classes", 100_000, "--batch", 1, "--seconds", 0.01, "--threads", 1,
                         "--all-reduce", all_reduce, "--json", file, "--overwrite", ranks=3)
            return json.loads(file.read_text())["peak_memory_bytes"]
        # Each rank also sees the gradients of the two others, 50 MB each.
        self.assertAlmostEqual(peak("shm"), peak("message-ring"), delta=25e6)

    def test_a_step_reorders_no_activations(self):
        batch = 13  # the first extent of activations, and of no parameter
        result = self.succeed("bench", "step", "--model", "resnet20", "--image", "32x32x3", "--batch", batch, "--seconds", 0.01,
                              "--threads", 1, environment={"ONEDNN_VERBOSE": "1"})
        lines = [line.split(",") for line in result.out.splitlines() if ",exec," in line]
        self.assertTrue(any(line[3] == "convolution" for line in lines), str(result))
        reordered = [line[-2] for line in lines if line[3] == "reorder"]
        self.assertEqual([shape for shape in reordered if shape.startswith(f"{batch}x")], [])

    def test_all_reduce(self):
        rows = self.rows("all-reduce", "--sizes", "4KiB,300:1MiB:50", "--algorithms", "ring,mpi", "--seconds", 0.05, ranks=2)
        self.assertEqual([(row["bytes"], row["algorithm"]) for row in rows],
                         [(size, name) for size in (4096, 300, 15_000, 750_000) for name in ("ring", "mpi")])
        for row in rows:
            self.assertGreater(row["min_seconds"], 0)
            self.assertGreaterEqual(row["median_seconds"], row["min_seconds"])
            self.assertLess(row["median_seconds"], 1)

    def test_noise(self):
        for ranks in (0, 2, 3):
            with self.subTest(ranks=ranks):
                apart, in_step = self.rows("noise", "--step", 0.5, "--seconds", 0.0122, "--threads", 1, ranks=ranks)
                self.assertEqual((apart["pace"], in_step["pace"]), ("apart", "in step"))
                work = []
                for row in (apart, in_step):
                    medians = row["median_seconds_of_ranks"]
                    self.assertEqual((row["ranks"], len(medians), row["steps"]), (max(ranks, 1), max(ranks, 1), 24))
                    self.assertGreaterEqual(min(medians), row["min_seconds"])
                    self.assertLessEqual(max(medians), row["max_seconds"])
                    work.append(row["flops_per_second"] / sum(1 / seconds for seconds in medians))
                self.assertAlmostEqual(work[0] / work[1], 1)  # a step of either has the same number of flops
                self.assertEqual(len(set(in_step["median_seconds_of_ranks"])), 1)

    def test_invalid_options(self):
        cases = ((("step", "--model", "squeezenet"), "squeezenet"),
                 (("all-reduce", "--sizes", "many"), "many|sizes"),
                 (("all-reduce", "--sizes", "8:4:2"), '"8:4:2" is empty'),
                 (("all-reduce", "--sizes", "8:64:1"), 'a whole number from 2 to 1024, not "1"'),
                 (("all-reduce", "--sizes", "8:64"), 'a size from 1 B to 1024 GiB, such as 1MiB, not "8:64"'),
                 (("links", "--size", 0), "--size"),
                 (("all-reduce", "--sizes", "4KiB", "--algorithms", "pigeon"), "pigeon"),
                 (("all-reduce", "--algorithms", "ring,none"), "none has nothing to time"),
                 (("noise", "--step", 0), "step"))
        for ranks in (0, 2):
            bench = lambda case: helper.run("bench", *case[0], ranks=ranks)
            for (arguments, word), result in helper.at_once(bench, cases):
                with self.subTest(arguments=arguments, ranks=ranks):
                    self.assertNotEqual(result.status, 0, str(result))
                    self.assertEqual(len(result.messages), 1, str(result))
                    self.assertRegex(result.messages[0], word)


if __name__ == "__main__":
    helper.main()
