"""The list of models, their cost, and the options that choose between their variants."""
import json

import numpy as np

import helper
from helper import read_checkpoint

SIZES = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808, "vgg16": 138_357_544,
         "alexnet": 61_100_840, "inception_v3": 23_834_568, "vit_b_16": 86_567_656}


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
                self.assertEqual(len(found), 21)
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

    def test_images_larger_than_memory(self):
        _, rows = self.table("--image", "60000x60000x3")  # planned and not made
        self.assertEqual(len(rows), 21)
        self.assertGreater(next(row for row in rows if row["model"] == "resnet18")["memory_bytes"], 60000 * 60000 * 64)

    def test_invalid_options(self):
        for arguments, word in ((("--model", "squeezenet"), "inception_v3.*squeezenet"),
                                (("--model", "inception_v3", "--image", "74x99x3"), "75x75"),
                                (("--image", "32x32"), "image"), (("--image", "0x32x3"), "image"),
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
