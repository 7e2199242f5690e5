"""A network exported to ONNX gives the results of `annulus predict` in an independent implementation (onnx_numpy)."""
import json

import h5py
import numpy as np
import onnx
import onnx.checker

import helper
import onnx_numpy

# Relative to the largest logit. float32 in another order of operations: about 1e-5 in the deepest networks.
TOLERANCE = 1e-4


class ExportTest(helper.ProgramTest):
    @classmethod
    def data_of(cls, size, channels):
        path = cls.shared / f"{size}x{channels}.h5"
        return path if path.exists() else helper.write_data(path, 40, 6, size, channels)

    def trained(self, model, size, channels, **options):
        """A run of a few steps, after which all batch norm statistics have changed."""
        out = self.folder / model
        options = {"data": self.data_of(size, channels), "batch": 4, "lr": 0.001, **options}
        self.succeed(*self.training(out, model, **options), timeout=180)
        return out

    def exported(self, run, *options):
        file = self.folder / "model.onnx"
        self.succeed("export", file, "--checkpoint", run, *options)
        return file

    def predicted(self, run, data, *options):
        """Logits and probabilities of the test images, in the order of the classes."""
        file = self.folder / "predicted.jsonl"
        self.succeed("predict", data, "--checkpoint", run, "--top", 10, "--jsonl", file, *options)
        tops = [sorted(json.loads(line)["top"], key=lambda entry: entry["class"])
                for line in file.read_text().splitlines()]
        return [np.array([[entry[what] for entry in top] for top in tops]) for what in ("logit", "probability")]

    def check(self, model, size, channels, evaluate, **options):
        """evaluate(file, images) gives logits and probabilities."""
        run = self.trained(model, size, channels, **options)
        data = self.data_of(size, channels)
        with h5py.File(data) as file:
            images = file["test/images"][()]
        found = evaluate(self.exported(run), images)
        ours = self.predicted(run, data)
        largest = np.abs(ours[0]).max()
        self.assertGreater(np.abs(np.diff(ours[0], axis=0)).max(), 0.01 * largest, "all images are the same to it")
        farthest = np.abs(found[0] - ours[0]).max() / largest
        print(f"  {model}: logits up to {largest:.3g}, which differ by up to {farthest:.1e} of that")
        self.assertLess(farthest, TOLERANCE)
        np.testing.assert_allclose(found[1], ours[1], atol=2 * TOLERANCE * largest)
        alone = evaluate(self.folder / "model.onnx", images[:1])
        self.assertLess(np.abs(alone[0] - ours[0][:1]).max(), TOLERANCE * largest)

    def check_models(self, evaluate):
        """Those whose dense layers are small."""
        for model, size, channels in (("mlp", 28, 1), ("lenet", 28, 1), ("cnn", 28, 1), ("resnet20", 32, 3),
                                      ("resnet18", 40, 3), ("resnet50", 40, 3), ("inception_v3", 75, 3),
                                      ("densenet121", 40, 3),
                                      ("vit_tiny", 32, 3)):
            with self.subTest(model):
                self.check(model, size, channels, evaluate)


def with_numpy(file, images):
    found = onnx_numpy.run(onnx.load(str(file)), images)
    return found["logits"], found["probabilities"]


class Export(ExportTest):
    def test_models_give_the_same_results(self):
        self.check_models(with_numpy)

    def test_probabilities_of_binary_cross_entropy_are_sigmoids(self):
        self.check("mlp", 28, 1, with_numpy, loss="binary")

    def test_metadata(self):
        data = self.data_of(28, 1)
        run = self.trained("lenet", 28, 1, ema=0.5)
        model = onnx.load(str(self.exported(run / "checkpoint.h5")))
        onnx.checker.check_model(model, full_check=True)
        self.assertEqual((model.producer_name, model.ir_version), ("annulus", 8))
        self.assertEqual([(o.domain, o.version) for o in model.opset_import], [("", 17)])

        def described(value):
            tensor = value.type.tensor_type
            return value.name, tensor.elem_type, [d.dim_param or d.dim_value for d in tensor.shape.dim]

        self.assertEqual(described(model.graph.input[0]),
                         ("images", onnx.TensorProto.UINT8, ["batch", 28, 28, 1]))
        self.assertEqual([described(output) for output in model.graph.output],
                         [(name, onnx.TensorProto.FLOAT, ["batch", 10]) for name in ("logits", "probabilities")])
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        with h5py.File(data) as file:
            self.assertEqual(json.loads(metadata["classes"]), list(file.attrs["classes"]))
            np.testing.assert_allclose(json.loads(metadata["mean"]), file.attrs["mean"], rtol=1e-6)
            np.testing.assert_allclose(json.loads(metadata["deviation"]), file.attrs["deviation"], rtol=1e-6)
        self.assertEqual((metadata["model"], metadata["step"], metadata["weights"], metadata["margin"]),
                         ("lenet", "10", "ema", "1"))

    def test_either_weights(self):
        run = self.trained("mlp", 28, 1, ema=0.9)
        weights = {}
        for which, group in (("auto", "average"), ("ema", "average"), ("raw", "parameters")):
            model = onnx.load(str(self.exported(run, "--weights", which)))
            found = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
            for name, values in helper.read_checkpoint(run / "checkpoint.h5")[group].items():
                name = name.replace("/", ".")
                self.assertEqual(found[name].tobytes(), values.tobytes(), name)
            weights[which] = found
        self.assertNotEqual(weights["ema"]["fc1.weight"].tobytes(), weights["raw"]["fc1.weight"].tobytes())

    def test_several_ranks_write_one_file(self):
        run = self.trained("mlp", 28, 1)
        alone = self.exported(run).read_bytes()
        self.succeed("export", self.folder / "two.onnx", "--checkpoint", run, ranks=2)
        self.assertEqual((self.folder / "two.onnx").read_bytes(), alone)

    def test_misuse_is_refused(self):
        run = self.trained("mlp", 28, 1)

        def complaint(*arguments):
            result = helper.run("export", *arguments)
            self.assertNotEqual(result.status, 0)
            self.assertEqual(len(result.messages), 1, result)
            return result.err

        for name in ("w.pt", "w.bin", "w.pth"):
            self.assertRegex(complaint(self.folder / name, "--checkpoint", run), r"\.onnx for the network, or \.safetensors")
            self.assertFalse((self.folder / name).exists())

        file = self.folder / "model.onnx"
        self.assertIn("nowhere.h5", complaint(file, "--checkpoint", self.folder / "nowhere.h5"))
        self.assertIn("no averaged weights", complaint(file, "--checkpoint", run, "--weights", "ema"))
        self.assertIn("no-folder", complaint(self.folder / "no-folder/model.onnx", "--checkpoint", run))
        with h5py.File(run / "checkpoint.h5", "r+") as checkpoint:  # as in old checkpoints
            del checkpoint.attrs["classes"]
            checkpoint.attrs.modify("version", 1)
        self.assertRegex(complaint(file, "--checkpoint", run), "a checkpoint of version 1, but this program reads version 4")
        self.assertFalse(file.exists())


if __name__ == "__main__":
    helper.main()
