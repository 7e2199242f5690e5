"""The list of models, their cost, and the options that choose between their variants."""
import json
import pathlib
import subprocess

import numpy as np

import helper
from helper import read_checkpoint

PREDICTION = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu-prediction"
SIZES = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808, "vgg16": 138_357_544,
         "alexnet": 61_100_840, "inception_v3": 23_834_568, "vit_b_16": 86_567_656,
         "densenet121": 7_978_856, "mobilenet_v3_large": 5_483_032}


class Models(helper.ProgramTest):
    def table(self, *arguments, ranks=0):
        file = self.folder / "models.json"
        result = self.succeed("models", *arguments, "--json", file, ranks=ranks)
        return result, json.loads(file.read_text())["models"]

    def test_all(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result, rows = self.table(ranks=ranks)
                found = {row["model"]: row for row in rows}
                self.assertEqual(len(found), 24)
                for model, size in SIZES.items():
                    self.assertEqual(found[model]["parameters"], size)
                    self.assertEqual(found[model]["gradient_bytes"], 4 * size)
                    self.assertEqual(found[model]["training_flops"], 3 * found[model]["forward_flops"])
                    self.assertEqual(sum(line.split()[0] == model for line in result.out.splitlines()), 1, result.out)
                self.assertEqual(found["resnet50"]["forward_flops"], 2 * 4_089_184_256)
                self.assertEqual((found["gpt2"]["input"], found["gpt2"]["classes"]), ("1024 tokens", 50257))
                self.assertEqual((found["inception_v3"]["image"], found["resnet20"]["image"]), ("299x299x3", "32x32x3"))

    def test_of_other_images(self):
        _, rows = self.table("--image", "64x64x3", "--classes", 10)
        found = {row["model"]: row for row in rows}
        self.assertEqual(found["resnet18"]["parameters"], SIZES["resnet18"] - 990 * 513)
        self.assertRegex(found["inception_v3"]["error"], "Mixed_7a.*75x75")

    def test_layers(self):
        result, row = self.table("--model", "alexnet")
        layers = row["layers"]
        for what in ("parameters", "forward_flops", "activation_bytes"):
            self.assertEqual(sum(layer[what] for layer in layers), row[what])
        self.assertEqual([layer["layer"] for layer in layers if layer["operation"] == "dropout"],
                         ["classifier.0", "classifier.3"])
        conv1 = next(layer for layer in layers if layer["layer"] == "features.0")
        self.assertEqual((conv1["output"], conv1["parameters"]), ("64x55x55", 64 * (3 * 121 + 1)))
        self.assertIn("64x55x55", result.out)
        _, rows = self.table()
        listed = next(other for other in rows if other["model"] == "alexnet")
        self.assertEqual(row["memory_bytes"], listed["memory_bytes"])

    def test_inputs_of_layers(self):
        _, row = self.table("--model", "resnet18", "--image", "64x64")
        inputs = {layer["layer"]: layer["inputs"] for layer in row["layers"]}
        self.assertEqual(inputs["input"], [])
        self.assertEqual(inputs["conv1"], ["input"])
        self.assertEqual(inputs["layer1.0.bn2"], ["layer1.0.conv2", "maxpool"])
        self.assertEqual(inputs["layer2.0.bn2"], ["layer2.0.conv2", "layer2.0.downsample.1"])

    def predict(self, *arguments):
        return subprocess.run([PREDICTION, *map(str, arguments)], capture_output=True, text=True, timeout=60)

    def test_prediction_of_kernels_on_a_gpu(self):
        # mlp: 28x28 pixels (8 channels on a GPU), 256, 128, 10 values; 2 bytes each, gradients of weights 4.
        step = self.folder / "step.json"
        times = [{"name": name, "forward_ms": 1.5, "backward_ms": 2.25} for name in ("fc1", "fc2")]
        step.write_text(json.dumps({"profile": {"optimizer_ms": 0.5, "layers": times}}))
        result = self.predict("--model", "mlp", "--batch", 1000, "--bandwidth", 0.001, "--peak", 1, "--measured", step)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = {cells[0]: cells[1:] for cells in (line.strip("| ").split(" | ") for line in result.stdout.splitlines())}
        parameters = [785 * 256, 257 * 128, 129 * 10]
        forward = 2000 * (8 * 784 + 256 + 256 + 128 + 128 + 10) + 2 * sum(parameters)
        self.assertEqual(rows["dense, forward"][:4], ["3", f"{forward / 1e9:.2f}", "0.00", f"{forward / 1e6:.2f}"])
        self.assertEqual(rows["dense, backward"][0], "5")  # the first needs no gradient of the images
        self.assertEqual((rows["dense, forward"][-1], rows["dense, backward"][-1]), ("3.00", "4.50"))
        self.assertEqual((rows["optimizer"][-1], rows["in all"][-1]), ("0.50", "8.00"))

    def test_prediction_of_a_batch_norm_with_a_max_pool_after_it(self):
        result = self.predict("--model", "resnet18", "--batch", 1000, "--bandwidth", 1, "--peak", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = {cells[0]: cells[1:] for cells in (line.strip("| ").split(" | ") for line in result.stdout.splitlines())}
        stem, pooled = 2000 * 64 * 112 * 112, 2000 * 64 * 56 * 56
        self.assertEqual(rows["max pool, forward"][:2], ["1", f"{(stem + pooled * 3 / 2) / 1e9:.2f}"])
        self.assertNotIn("max pool, backward", rows)
        self.assertEqual(rows["batch norm, forward"][0], "39")  # two kernels of each of 20, but one of the first

    def test_prediction_of_fused_batch_norms(self):
        passes, convolutions = {}, {}
        for model in "resnet18", "resnet50":
            for precision in "bf16", "fp16":
                result = self.predict("--model", model, "--bandwidth", 1, "--peak", 1, "--precision", precision,
                                      "--deterministic", "off")
                self.assertEqual(result.returncode, 0, result.stderr)
                rows = {cells[0]: cells[1:]
                        for cells in (line.strip("| ").split(" | ") for line in result.stdout.splitlines())}
                passes[model, precision] = [int(rows[f"batch norm, {phase}"][0]) for phase in ("forward", "backward")]
                convolutions[model, precision] = int(rows["convolution, backward"][0])
        # Convolutions compute the outputs of the first batch norms of blocks. In ResNet-50 they also compute 15 ends of
        # blocks, by 1x1 convolutions without a stride.
        self.assertEqual(passes, {("resnet18", "bf16"): [39, 40], ("resnet18", "fp16"): [39 - 8, 40],
                                  ("resnet50", "bf16"): [105, 106], ("resnet50", "fp16"): [105 - 2 * 16 - 15, 106]})
        # The gradients of weights are widened apart, except for those of 1x1 convolutions without a stride that read
        # their input: 33 in ResNet-50, of which 16 compute it in fp16.
        self.assertEqual(convolutions, {("resnet18", "bf16"): 39 + 20, ("resnet18", "fp16"): 39 + 20,
                                        ("resnet50", "bf16"): 105 + 20, ("resnet50", "fp16"): 105 + 36})

    def test_prediction_of_our_own_convolutions(self):
        # Our 3x3 convolutions compute the outputs of 9 batch norms within resnet20's blocks and of 8 at their ends.
        for arguments, kernels in ((), 42), (("--own-products",), 42 - 9 - 8):
            result = self.predict("--model", "resnet20", "--bandwidth", 1, "--peak", 1, *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"| batch norm, forward | {kernels} |", result.stdout)

    def test_prediction_of_images_in_blocks(self):
        # Windows that move by 2 pixels read blocks of 2x2 pixels, whose 12 channels are padded to 16.
        for model, pixels, stored in ("resnet18", 224 * 224 * 3, 112 * 112 * 16), ("mlp", 28 * 28, 28 * 28 * 8):
            result = self.predict("--model", model, "--batch", 10000, "--bandwidth", 1, "--peak", 1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"| image input, forward | 1 | {(pixels + 2 * stored) / 1e5:.2f} |", result.stdout)

    def test_prediction_of_a_gpt(self):
        result = self.predict("--model", "gpt2", "--batch", 2, "--bandwidth", 1, "--peak", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        tokens, width, vocabulary = 2 * 1024, 768, 50257
        flops = 3 * 2 * tokens * width * vocabulary  # logits, and the gradients of the hidden values and the weights
        bytes_ = 2 * (3 * tokens * width + 4 * width * vocabulary + 5 * tokens * vocabulary)
        self.assertIn(f"| language-model head, backward | 4 | {bytes_ / 1e9:.2f} | {flops / 1e12:.2f} |", result.stdout)
        # All norms but the first compute the sum before them, whose gradients have the memory of their own.
        values = 2 * tokens * width
        self.assertIn(f"| layer norm, forward | 25 | {(24 * 4 + 2) * values / 1e9:.2f} |", result.stdout)
        self.assertIn(f"| layer norm, backward | 50 | {25 * 4 * values / 1e9:.2f} |", result.stdout)
        self.assertNotIn("| add, ", result.stdout)

    def test_prediction_of_the_optimizer(self):
        # In fp16 a look at the last of two buckets, and the update of its weights; the other's run beside forward.
        last = 25557032 - (16 << 20)  # of ResNet-50
        for precision, number, bytes_, segments in ("bf16", 1, 22 * last, 1), ("fp16", 2, 26 * last, 2):
            result = self.predict("--precision", precision, "--bandwidth", 1, "--peak", 1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"| optimizer | {number} | {bytes_ / 1e9:.2f} |", result.stdout)
            self.assertIn(f"| captured segments | {segments} |", result.stdout)

    def test_prediction_of_unknown_kernels(self):
        result = self.predict("--model", "vit_tiny")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^gpu-prediction: .*: the time of .* cannot be predicted\n$")

    def test_images_larger_than_memory(self):
        _, rows = self.table("--image", "60000x60000x3")  # planned and not made
        self.assertEqual(len(rows), 24)
        self.assertGreater(next(row for row in rows if row["model"] == "resnet18")["memory_bytes"], 60000 * 60000 * 64)

    def test_invalid_options(self):
        for arguments, word in ((("--model", "squeezenet"), "inception_v3.*squeezenet"),
                                (("--model", "inception_v3", "--image", "74x99x3"), "75x75"),
                                (("--image", "0x32x3"), "--image: expected a size such as 224, 224x160 or 224x160x3, not \"0x32x3\""),
                                (("--image", "8x8x3x3"), "--image: expected a size"), (("--image", "8x"), "--image: expected a size"),
                                (("--classes", "0"), "classes")):
            with self.subTest(arguments=arguments):
                result = helper.run("models", *arguments)
                self.assertNotEqual(result.status, 0, str(result))
                self.assertEqual(len(result.messages), 1, str(result))
                self.assertRegex(result.messages[0], word)


class ZeroInit(helper.ProgramTest):
    def scales(self, **options):
        """The scales of the blocks' last batch norms after a step."""
        out = self.folder / f"run{len(options)}"
        self.train(out, model="resnet20", max_steps=1, lr=1e-6, **options)
        parameters = read_checkpoint(out / "checkpoint.h5")["parameters"]
        return np.array([values for name, values in parameters.items() if name.endswith("bn2.weight")], dtype=object)

    def test_blocks_are_initialized_to_their_shortcut(self):
        for expected, scales in ((0, self.scales(zero_init=True)), (1, self.scales())):
            self.assertEqual(len(scales), 9)
            for scale in scales:
                self.assertLess(np.abs(scale.astype(float) - expected).max(), 1e-3)


if __name__ == "__main__":
    helper.main()
