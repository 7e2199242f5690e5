"""Time accounting: every rank's ledger, the timeline, and runs that measure without all-reduces."""
import json
import time

import helper
from helper import read_checkpoint

PARTS = ["input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"]
RUN, STEP, ALL_REDUCE = range(3)  # the timeline's lanes


class Ledger(helper.ProgramTest):
    def check(self, ledger, ranks):
        of_ranks = ledger["ranks"]
        for part in PARTS:
            self.assertEqual(len(of_ranks[part]), ranks)
            self.assertAlmostEqual(ledger[part], sum(of_ranks[part]) / ranks, delta=1e-9 * ledger["wall"])
            worst = ledger["worst"][part]
            self.assertEqual(worst["seconds"], max(of_ranks[part]))
            self.assertEqual(worst["seconds"], of_ranks[part][worst["rank"]])
        for rank, wall in enumerate(of_ranks["wall"]):
            self.assertAlmostEqual(sum(of_ranks[part][rank] for part in PARTS), wall, delta=1e-9 * wall)
        self.assertAlmostEqual(sum(ledger[part] for part in PARTS), ledger["wall"], delta=1e-9 * ledger["wall"])
        if ranks == 1:
            self.assertNotIn("latest", ledger)
            return
        # In every step some rank is last, and later than the first one.
        self.assertGreaterEqual(sum(of_ranks["last"]), ledger["steps"])
        self.assertGreaterEqual(min(of_ranks["behind_first"]), 0)
        latest = ledger["latest"]["rank"]
        self.assertEqual(of_ranks["behind_first"][latest], max(of_ranks["behind_first"]))

    def test_epochs_add_up_to_the_run(self):
        for ranks in (0, 3):
            with self.subTest(ranks=ranks):
                results = self.train(self.folder / str(ranks), ranks=ranks, model="lenet", epochs=2)
                count = max(ranks, 1)
                for ledger in [results["ledger"]] + [epoch["ledger"] for epoch in results["epochs"]]:
                    self.check(ledger, count)
                total = sum(epoch["ledger"]["wall"] for epoch in results["epochs"])
                self.assertAlmostEqual(results["ledger"]["wall"], total, delta=1e-9 * total)

    def test_the_parts_of_the_start_up_add_up(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.succeed(*self.training(self.folder / str(ranks)), ranks=ranks)
                results = json.loads((self.folder / str(ranks) / "results.json").read_text())
                parts, whole = results["startup"], results["startup_seconds"]
                self.assertAlmostEqual(sum(parts.values()), whole, delta=1e-3)
                self.assertGreaterEqual(min(parts.values()), 0)
                self.assertGreater(parts["mpi"], 0)
                self.assertLess(whole + results["ledger"]["wall"], results["total_seconds"])
                self.assertLess(results["total_seconds"], result.seconds)
                line, = (line for line in result.out.splitlines() if line.startswith("start-up: "))
                self.assertEqual(len(line.split(", ")), len(parts))

    def test_the_table_names_ranks_if_there_are_several(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                result = self.succeed(*self.training(self.folder / str(ranks), max_steps=3), ranks=ranks)
                self.assertEqual(result.out.count("ms on rank"), 7 if ranks > 1 else 0, str(result))
                self.assertEqual("is the latest" in result.out, ranks > 1, str(result))


class Timeline(helper.ProgramTest):
    def events(self, file):
        """Complete events by (rank, lane), and the names of the processes."""
        lanes, processes = {}, {}
        for event in json.loads(file.read_text()):
            if event["ph"] == "X":
                lanes.setdefault((event["pid"], event["tid"]), []).append(event)
            else:
                self.assertEqual(event["ph"], "M")
                if event["name"] == "process_name":
                    processes[event["pid"]] = event["args"]["name"]
        return lanes, processes

    def check_nesting(self, events):
        """Two spans of a lane are nested or disjoint."""
        rounding = 0.002  # us: times are written with three digits
        open_until = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + rounding:
                open_until.pop()
            if open_until:
                self.assertLessEqual(end, open_until[-1] + rounding, event)
            open_until.append(end)

    def of_step(self, events, name, step):
        return [event for event in events if event["name"].startswith(name) and event["args"]["step"] == step]

    def test_training(self):
        file = self.folder / "timeline.json"
        result = self.succeed(*self.training(self.folder / "out", model="lenet", epochs=2, batch=10, bucket="64KiB",
                                             all_reduce="ring", timeline=file, timeline_steps=4), ranks=3)
        self.assertIn("timeline of 4 steps", result.out)
        self.assertNotIn("fit", result.out)
        lanes, processes = self.events(file)
        self.assertEqual(sorted(processes), [0, 1, 2])
        self.assertEqual(set(lanes), {(rank, lane) for rank in range(3) for lane in (RUN, STEP, ALL_REDUCE)})
        for events in lanes.values():
            self.check_nesting(events)
        for rank in range(3):
            self.check_rank(*(lanes[rank, lane] for lane in (RUN, STEP, ALL_REDUCE)))

    def check_rank(self, run, step, all_reduce):
        names = [event["name"] for event in run]
        for name in ("epoch 1", "epoch 2", "evaluation", "checkpoint"):
            self.assertIn(name, names)
        self.assertEqual([e["args"]["step"] for e in step if e["name"] == "step"], [6, 7, 8, 9])
        for number in range(6, 10):
            for name in ("wait for images", "forward", "backward"):
                self.assertEqual(len(self.of_step(step, name, number)), 1, name)
            self.assertEqual(len(self.of_step(step, "conv1", number)), 2)
            buckets = len(self.of_step(all_reduce, "all-reduce of bucket", number))
            self.assertGreater(buckets, 1)
            for name in ("wait for bucket", "update of bucket"):
                self.assertEqual(len(self.of_step(step, name, number)), buckets, name)
            for half in ("reduce-scatter", "all-gather"):
                self.assertGreaterEqual(len(self.of_step(all_reduce, half, number)), 2 * buckets, half)

    def test_all_reduces_overlap_with_backward(self):
        file = self.folder / "timeline.json"
        self.succeed(*self.training(self.folder / "out", model="resnet20", batch=20, bucket="256KiB", max_steps=12,
                                    all_reduce="ring", timeline=file), ranks=2)
        lanes, _ = self.events(file)
        beside = 0
        for rank in range(2):
            for backward in [e for e in lanes[rank, STEP] if e["name"] == "backward"]:
                for sum_ in self.of_step(lanes[rank, ALL_REDUCE], "all-reduce of bucket", backward["args"]["step"]):
                    self.assertGreater(sum_["ts"], backward["ts"])
                    beside += sum_["ts"] < backward["ts"] + backward["dur"]
        self.assertGreater(beside, 0)

    def test_bench_step(self):
        file = self.folder / "timeline.json"
        self.succeed("bench", "step", "--model", "mlp", "--batch", 8, "--seconds", 0.2, "--threads", 1,
                     "--all-reduce", "shm", "--timeline", file, "--timeline-steps", 3, ranks=2)
        lanes, _ = self.events(file)
        self.assertEqual(sum(e["name"] == "step" for e in lanes[1, STEP]), 3)
        for name in ("all-reduce of bucket 1", "wait for ranks"):
            self.assertIn(name, [e["name"] for e in lanes[1, ALL_REDUCE]])
        self.check_nesting(lanes[1, ALL_REDUCE])

    def test_an_unwritable_file_is_reported_at_start(self):
        since = time.monotonic()
        result = helper.run(*self.training(self.folder / "out", epochs=1000000, timeline="/no/such/folder/t.json"))
        self.assertLess(time.monotonic() - since, 20)
        self.assertEqual(len(result.messages), 1, str(result))
        self.assertIn("/no/such/folder/t.json", result.messages[0])


class Measuring(helper.ProgramTest):
    def test_training_needs_an_all_reduce(self):
        result = helper.run(*self.training(self.folder / "out", all_reduce="none"), ranks=2)
        self.assertEqual(result.status, 2, str(result))
        self.assertIn("bench step --all-reduce auto,none", result.messages[0])
        self.assertFalse((self.folder / "out").exists())

    def test_all_reduces_take_turns(self):
        file = self.folder / "bench.json"
        result = self.succeed("bench", "step", "--model", "lenet", "--batch", 16, "--seconds", 0.3, "--threads", 1,
                              "--all-reduce", "ring,none,mpi", "--json", file, ranks=2)
        self.assertEqual(len([line for line in result.out.splitlines() if line.startswith("compute ")]), 2, str(result))
        rows = json.loads(file.read_text())["rows"]
        self.assertEqual([row["algorithm"] for row in rows], ["ring", "none", "mpi"])
        self.assertEqual(len({row["steps"] for row in rows}), 1)
        for row in rows:
            self.assertGreater(row["compute_seconds"], 0)
            self.assertLess(row["compute_seconds"], row["median_seconds"])  # the mean rank's, and the slowest rank's
            self.assertEqual(row["ledger"]["exposed_communication"] == 0, row["algorithm"] == "none")


if __name__ == "__main__":
    helper.main()
