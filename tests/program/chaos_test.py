"""Twenty trials of scripts/chaos, on one node."""
import collections
import json
import os
import pathlib
import subprocess

import helper

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Chaos(helper.ProgramTest):
    def test_random_disturbances(self):
        out = self.folder / "chaos"
        done = subprocess.run(
            [ROOT / "scripts/chaos", "--kills", "8", "--lost-hosts", "0", "--frozen", "2", "--cuts", "0", "--mpirun", "2",
             "--full-disks", "0", "--flips", "3", "--memory", "5", "--hosts", "0", "--steps", "250", "--strategies",
             "shards,sharded,local,shards,async,pipeline", "--patience", "10", "--seed", "7", "--data", self.data, "--out", out],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "ANNULUS": helper.ANNULUS})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
        kinds = collections.Counter(trial["kind"] for trial in trials)
        self.assertEqual(kinds, {"kill": 8, "frozen": 2, "mpirun": 2, "flip": 3, "memory": 5})
        # The same bits wherever they are promised, and with --shards --survive deaths do not end the job.
        self.assertEqual([trial["equal"] for trial in trials],
                         [None if trial["strategy"] in ("async", "local") else True for trial in trials])
        went_on = [trial["status"] for trial in trials if trial["strategy"] == "shards" and trial["kind"] in ("kill", "frozen")
                   and "--min-ranks" not in trial["arguments"]]
        self.assertEqual(went_on, [0] * len(went_on), done.stdout)
        # Flips in memory are found: steps are repeated, or without --survive the run ends.
        self.assertEqual([(trial["moment"], trial["status"], trial["found"]) for trial in trials if trial["kind"] == "memory"],
                         [("weights", 0, True), ("state", 0, True), ("average", 0, True), ("bucket", 0, True), ("weights", 1, True)])


if __name__ == "__main__":
    helper.main()
