"""Standard output that cannot be written: a full disk, a reader that ended, a closed one; and limits of the process."""
import json
import resource

import helper


class Output(helper.ProgramTest):
    def shell(self, script, *arguments, environment=None):
        """Runs `script` in bash, where "$@" is the program with these arguments."""
        return helper.run(*arguments, prefix=["bash", "-c", script, "bash"], environment=environment)

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


if __name__ == "__main__":
    helper.main()
