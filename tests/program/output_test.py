"""Standard output that cannot be written: a full disk, a reader that ended, a closed one; and limits of the process."""
import json
import re
import resource
import struct
import zlib

import helper


def png(side):
    """A black image, of which little has to be read and much to be decoded."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(3 * side + 1) * side, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Output(helper.ProgramTest):
    def shell(self, script, *arguments, environment=None):
        """Runs `script` in bash, where "$@" is the program with these arguments."""
        return helper.run(*arguments, prefix=["bash", "-c", script, "bash"], environment=environment)

    def limited(self, limit, *arguments, ranks=0):
        """Runs ranks of the program, each with ulimit's `limit`."""
        start = helper.command([], ranks)[:-1]
        return helper.run(*arguments, prefix=[*start, "bash", "-c", f'ulimit {limit}; exec "$@"', "bash"])

    def results(self, out):
        return json.loads((out / "results.json").read_text())

    def test_a_full_disk(self):
        out = self.folder / "trained"
        self.train(out, max_steps=2)
        commands = (["--help"], ["--version"], ["train", "--help"], [], ["models"], ["doctor"], ["checkpoint", "show", out],
                    ["eval", "--data", self.data, "--checkpoint", out],
                    ["bench", "all-reduce", "--sizes", "4KiB", "--algorithms", "mpi", "--seconds", 0.01],
                    [*self.training(out, max_steps=2), "--print-config"])
        for command, result in helper.at_once(lambda command: self.shell('exec "$@" > /dev/full', *command), commands):
            with self.subTest(command):
                self.assertEqual(result.status, 1 if command else 2, str(result))
                self.assertEqual(result.messages, ["annulus: cannot write to standard output: No space left on device"])

    def test_training_goes_on_without_its_output(self):
        for script, status, message in (('exec "$@" > /dev/full', 1, "No space left on device"),
                                        ('set -o pipefail; "$@" | head -n 1', 0, "Broken pipe"), ('exec "$@" >&-', 0, "")):
            with self.subTest(script):
                out = self.folder / f"out-{message}"
                result = self.shell(script, *self.training(out, epochs=2))
                self.assertEqual(result.status, status, str(result))
                self.assertEqual(result.messages,
                                 [f"annulus: cannot write to standard output: {message}"] if message else [])
                self.assertEqual(self.results(out)["status"], "complete")
                self.succeed("checkpoint", "show", out)

    def test_json_on_standard_output(self):
        out = self.folder / "out"
        result = self.succeed(*self.training(out, json="-"), ranks=2)
        self.assertEqual(json.loads(result.out), self.results(out))
        self.assertIn("epoch 1/1 ", result.err)
        commands = (["models", "--json", "-"], ["checkpoint", "show", out, "--json=-"],
                    ["eval", "--data", self.data, "--checkpoint", out, "--json", "-"],
                    ["bench", "all-reduce", "--sizes", "4KiB", "--algorithms", "mpi", "--seconds", 0.01, "--json", "-"],
                    self.training(out, resume=True, quiet=True, json="-"))
        for command, result in helper.at_once(lambda command: helper.run(*command), commands):
            with self.subTest(command):
                self.assertEqual(result.status, 0, str(result))
                self.assertIn("kind", json.loads(result.out))
                self.assertNotEqual(result.err, "")
        self.assertEqual(result.err.count("\n"), 1, str(result))  # --quiet
        result = helper.run("eval", "--data", self.data, "--follow", out, "--json", "-")
        self.assertEqual(result.status, 2, str(result))
        self.assertIn("--json: with --follow the results are appended to a file: give one instead of -", result.err)
        self.assertEqual(self.shell('exec "$@" > /dev/full', "models", "--json", "-").messages,
                         ["annulus: cannot write to standard output: No space left on device"])

    def test_quiet(self):
        out = self.folder / "out"
        result = self.succeed(*self.training(out, quiet=True), ranks=2)
        accuracy = self.results(out)["test_accuracy"]
        self.assertRegex(result.out, rf"^test accuracy {100 * accuracy:.2f} %  \(.*\)\n$")
        self.assertEqual(result.err, "")
        self.assertRegex(self.succeed(*self.training(out, quiet=True, resume=True)).out, "^nothing to do: .*\n$")
        warned = self.succeed(*self.training(self.folder / "warned", quiet=True, threads=1000, max_steps=1))
        self.assertRegex(warned.out, r"^  warning     --threads 1000 is more than .*\ntest accuracy .*\n$")

    def test_a_log_says_when_where_and_in_which_job(self):
        out = self.folder / "out"
        job = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"}
        result = self.succeed(*self.training(out, max_steps=1), ranks=2, environment=job)
        self.assertRegex(result.out, r"\n  started     \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ on \S+, Slurm job 12, restart 2\n")

    def test_the_reader_of_a_short_output_may_end(self):
        result = self.shell('"$@" | head -n 1', "models")
        self.assertEqual((result.status, result.err), (0, ""), str(result))

    def test_the_size_of_files_is_limited(self):
        out = self.folder / "out"
        process = helper.start(*self.training(out, epochs=1000000, checkpoint_every=5))
        self.await_checkpoint(process, out)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10000, 10000))
        result = helper.finish(process)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"out.*File too large")

    def test_memory_is_limited(self):
        """The plan of a step is compared with the limit before memory is allocated."""
        result = self.shell('ulimit -v 3000000; exec "$@"', "bench", "step", "--model", "resnet18", "--image", "224x224x3",
                            "--batch", 256, "--device", "cpu", "--threads", 1)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], r"takes about 4\.\d+ GiB of memory on each rank, which may use 2\.861 GiB \(ulimit -v\): give a smaller --batch")
        self.assertRegex(self.shell('ulimit -v 3000000; exec "$@"', "doctor").out, r"(?m)^  memory +2\.86\d* GiB \(ulimit -v\)")

    def memory_to_start(self):
        """The limit of memory, in KiB, that a rank needs to start MPI; found by giving it more, until it can complain."""
        for limit in range(200000, 10000000, 200000):
            result = self.limited(f"-v {limit}", "bench", "step", "--model", "mlp", "--seconds", 0.01)
            if found := re.fullmatch(r"annulus: this process may use .* \(ulimit -v (\d+)\), and needs .* to start: give a "
                                     r"higher limit, such as ulimit -v (\d+), or none\n", result.err):
                self.assertEqual((result.status, int(found[1])), (1, limit))
                return int(found[2]) // 2
        self.fail(str(result))

    def test_limits_below_what_mpi_needs(self):
        """The libraries of MPI and oneDNN would crash, or report what nobody understands."""
        out = self.folder / "trained"
        self.train(out, max_steps=2)
        commands = (self.training(self.folder / "out"), ["eval", "--data", self.data, "--checkpoint", out],
                    ["import", self.folder / "new.h5", self.folder], ["bench", "step", "--model", "mlp"])
        memory = self.memory_to_start()
        cases = [(limit, ranks, command) for limit in ("-n 10", "-n 24", f"-v {memory - 1000}") for ranks in (0, 2)
                 for command in commands]
        for (limit, ranks, command), result in helper.at_once(lambda case: self.limited(case[0], *case[2], ranks=case[1]), cases):
            with self.subTest(f"{limit} {ranks} {command[0]}"):
                self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
                self.assertRegex(result.messages[0], r"may (open 10|open 24|use) .*\(ulimit.* needs .* to start: give a higher")
                self.assertNotRegex(result.err, r"ORTE|PMI[xX ]|Signal|terminate called")

    def test_a_thread_without_memory(self):
        """One of the threads that decode images needs more than there is."""
        out = self.folder / "trained"
        images = [png(32)] * 19
        data = helper.write_encoded(self.folder / "large.h5", {"train": ([*images, png(10000)], [0] * 20), "test": (images, [0] * 19)})
        small = helper.write_encoded(self.folder / "small.h5", {"train": (images, [0] * 19), "test": ([*images, png(10000)], [0] * 20)})
        options = {"image": 32, "batch": 5, "workers": 2}
        self.train(out, data=small, max_steps=2, eval_every="end", **options)
        limit = f"-v {self.memory_to_start() + 150000}"
        cases = [(ranks, command) for ranks in (0, 2) for command in
                 (self.training(self.folder / f"out{ranks}", data=data, **options),
                  ["eval", "--data", small, "--checkpoint", out, "--workers", 2],
                  ["bench", "input", "--data", data, "--image", 32])]
        for (ranks, command), result in helper.at_once(lambda case: self.limited(limit, *case[1], ranks=case[0]), cases):
            with self.subTest(f"{ranks} {command[0]}"):
                self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
                self.assertRegex(result.messages[0], r"annulus: (rank 1: )?not enough memory \(ulimit -v limits it\)")


if __name__ == "__main__":
    helper.main()
