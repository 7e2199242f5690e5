"""Hosts and containers whose /dev/shm is too small for what ranks share: they send messages instead."""
import subprocess
import unittest

import helper



def space(size):
    """A command before others, which then find this much space in /dev/shm."""
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]


SMALL = space("100k")
MESSAGES = {"OMPI_MCA_btl": "self,tcp"}  # Open MPI's own transport in shared memory would need more, too


@unittest.skipIf(subprocess.run([*SMALL, "true"], stderr=subprocess.DEVNULL).returncode, "no file systems can be mounted here")
class SmallSharedMemory(helper.ProgramTest):
    def train_small(self, name, ranks, prefix=SMALL, **options):
        out = self.folder / name
        result = helper.run(*self.training(out, seed=3, **{"model": "lenet", "batch": 10, "max_steps": 12, **options}), ranks=ranks,
                            prefix=prefix, environment=MESSAGES)
        self.assertEqual(result.status, 0, str(result))
        return out / "checkpoint.h5", result

    def test_shards(self):
        alone, _ = self.train_small("alone", 0, shards=4)
        for ranks in (2, 3):
            checkpoint, result = self.train_small(f"run-{ranks}", ranks, shards=4)
            self.assertIn("all-reduce  tree of shards, over MPI messages, because /dev/shm has too little space", result.out)
            self.assert_same_state(alone, checkpoint)

    def test_asynchronous_steps(self):
        """Without staleness they have the same bits over messages as in shared memory."""
        options = {"strategy": "async", "sync_every": 5}
        for servers in (0, 1):
            (shared, _), (sent, result) = (self.train_small(f"{name}-{servers}", 3, prefix, staleness=0, servers=servers, **options)
                                           for name, prefix in (("shared", []), ("sent", SMALL)))
            self.assertIn("all-reduce  ring over MPI messages", result.out)
            self.assert_same_state(shared, sent)
        self.train_small("stale", 3, **options)
        self.train_small("timed", 3, servers=1, **{**options, "sync_every": "0.5s"})

    def test_others(self):
        for name, options in (("synchronous", {}), ("sharded", {"strategy": "sharded"}), ("local", {"strategy": "local", "sync_every": 5})):
            with self.subTest(name):
                _, result = self.train_small(name, 3, **options)
                self.assertIn("all-reduce  ring over MPI messages", result.out)

    def test_gradients_that_do_not_fit(self):
        """What an algorithm itself needs does: then gradients pass through it piece by piece, with the same bits."""
        large = {"model": "resnet18", "max_steps": 3}  # buckets of several pieces
        for number, (algorithm, size, options) in enumerate((
                ("shm", "6m", {}), ("shm", "6m", {"strategy": "sharded"}), ("shm", "6m", {"strategy": "sharded", **large}),
                ("shm", "6m", {"strategy": "local", "sync_every": 5}), ("ring", "15m", {}),
                ("ring", "15m", {"strategy": "sharded"}), ("auto", "24m", large))):
            with self.subTest(algorithm, **options):
                options = {"model": "cnn", "all_reduce": algorithm, **options}
                (shared, _), (pieces, result) = (self.train_small(f"{name}-{number}", 3, prefix, **options)
                                                 for name, prefix in (("large", []), ("small", space(size))))
                self.assertRegex(result.out, "all-reduce  .* because /dev/shm has too little space")
                self.assertNotIn("messages", result.out)
                self.assert_same_state(shared, pieces)


if __name__ == "__main__":
    helper.main()
