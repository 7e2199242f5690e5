"""Weights are exchanged with PyTorch as safetensors files, and training begins with them (--weights)."""
import json
import struct

import numpy as np

import helper

TYPES = {"F32": np.float32, "I64": np.int64}


def read_safetensors(path):
    """The metadata, and the tensors by their names."""
    content = path.read_bytes()
    begin = 8 + struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(content[begin + first:begin + end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return metadata, tensors


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        kind = next(name for name, dtype in TYPES.items() if dtype == values.dtype)
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Weights(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.colours = helper.write_data(cls.shared / "colours.h5", 60, 10, 16, 3)

    def trained(self, name, **options):
        out = self.folder / name
        self.train(out, **{"max_steps": 1, **options})
        return out

    def exported(self, run, name="weights.safetensors", *options):
        file = self.folder / name
        self.succeed("export", file, "--checkpoint", run, *options)
        return file

    def refused(self, *words, **options):
        result = helper.run(*self.training(self.folder / "refused", **{"max_steps": 1, **options}))
        self.assertNotEqual(result.status, 0)
        self.assertEqual(len(result.messages), 1, result)
        for word in words:
            self.assertIn(word, result.messages[0])

    def test_exported_tensors_are_those_of_a_state_dict(self):
        run = self.trained("run", model="resnet20", data=self.colours, max_steps=2)
        metadata, tensors = read_safetensors(self.exported(run))
        self.assertEqual({key: metadata[key] for key in ("format", "producer", "model", "step", "weights")},
                         {"format": "pt", "producer": "annulus", "model": "resnet20", "step": "2", "weights": "raw"})
        stored = helper.read_checkpoint(run / "checkpoint.h5")["parameters"]
        counters = {name for name in tensors if name.endswith("num_batches_tracked")}
        self.assertEqual(tensors.keys() - counters, stored.keys())
        self.assertEqual(len(counters), 21)
        for name, values in tensors.items():
            if name in counters:
                self.assertEqual((values.dtype, values.shape, values[()]), (np.int64, (), 2))
            else:
                expected = (10, 64) if name == "fc.weight" else stored[name].shape
                self.assertEqual(values.shape, expected)
                self.assertEqual(values.tobytes(), stored[name].tobytes(), name)

    def test_dense_layers_have_matrices(self):
        _, tensors = read_safetensors(self.exported(self.trained("run", model="lenet")))
        self.assertEqual({name: values.shape for name, values in tensors.items()},
                         {"conv1.weight": (6, 1, 5, 5), "conv1.bias": (6,), "conv2.weight": (16, 6, 5, 5),
                          "conv2.bias": (16,), "fc1.weight": (120, 400), "fc1.bias": (120,), "fc2.weight": (84, 120),
                          "fc2.bias": (84,), "fc3.weight": (10, 84), "fc3.bias": (10,)})

    def test_training_begins_with_a_file_or_a_checkpoint(self):
        """A rate so low that a step changes nothing but biases of zero."""
        for model, data in (("lenet", self.data), ("resnet20", self.colours)):
            run = self.trained(f"{model}-first", model=model, data=data, max_steps=2)
            file = self.exported(run, f"{model}.safetensors")
            _, before = read_safetensors(file)
            for ranks, weights in ((1, file), (2, run), (1, run / "best.h5")):
                with self.subTest(model=model, weights=weights.name):
                    out = self.folder / f"{model}-{weights.name}"
                    result = self.succeed(*self.training(out, model=model, data=data, seed=8, max_steps=1, lr=1e-30,
                                                         global_batch=20, weights=weights), ranks=ranks)
                    self.assertIn("initial weights from", result.out)
                    _, after = read_safetensors(self.exported(out, f"{out.name}.safetensors"))
                    self.assertEqual(before.keys(), after.keys())
                    for name, values in before.items():
                        if "running" not in name and "num_batches" not in name:
                            np.testing.assert_allclose(after[name], values, rtol=0, atol=1e-29, err_msg=name)

    def test_averaged_weights_are_used_if_there_are_any(self):
        run = self.trained("run", ema=0.5, max_steps=5)
        average = helper.read_checkpoint(run / "checkpoint.h5")["average"]
        out = self.trained("next", weights=run, lr=1e-30)
        found = helper.read_checkpoint(out / "checkpoint.h5")["parameters"]
        np.testing.assert_allclose(found["fc1.weight"], average["fc1.weight"], rtol=0, atol=1e-29)

    def test_a_head_with_other_classes_remains_random(self):
        run = self.trained("run", max_steps=2)
        file = self.exported(run)
        _, tensors = read_safetensors(file)
        many = {name: np.resize(values, (1000, *values.shape[1:])) if name.startswith("fc3.") else values
                for name, values in tensors.items()}
        write_safetensors(file, many)
        out = self.folder / "next"
        result = self.succeed(*self.training(out, weights=file, max_steps=1, lr=1e-30, seed=5))
        self.assertIn("but not of fc3, which has 1000 classes there: it begins with random weights", result.out)
        random = self.trained("random", max_steps=1, lr=1e-30, seed=5)
        found, expected = (helper.read_checkpoint(run / "checkpoint.h5")["parameters"] for run in (out, random))
        self.assertEqual(found["fc3.weight"].tobytes(), expected["fc3.weight"].tobytes())
        np.testing.assert_allclose(found["fc2.weight"], tensors["fc2.weight"], rtol=0, atol=1e-29)

    def test_a_resumed_run_does_not_read_the_file_again(self):
        run = self.trained("run", max_steps=2)
        file = self.exported(run)
        options = {"weights": file, "max_steps": 4}
        whole, parts = self.trained("whole", **options), self.trained("parts", **{**options, "max_steps": 2})
        file.unlink()
        self.train(parts, resume=True, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_files_that_do_not_fit_are_refused(self):
        file = self.exported(self.trained("run"))
        _, tensors = read_safetensors(file)
        self.refused("weights.safetensors", "does not fit this network", "missing conv1.weight, bn1.weight, bn1.bias and ",
                     "unexpected fc1.bias, fc1.weight, fc2.bias and 3 more", "--model", model="resnet20", data=self.colours, weights=file)
        self.refused("other shapes: fc1.weight 256x784 instead of 256x768", data=self.colours, weights=file)
        tensors["AuxLogits.fc.weight"] = np.zeros((1,), np.float32)  # ignored
        tensors["fc2.bias"] = np.full((128,), np.nan, np.float32)
        write_safetensors(file, tensors)
        self.refused("tensor fc2.bias has values that are not finite", weights=file)
        file.write_bytes(file.read_bytes()[:-1])
        self.refused("weights.safetensors", "fetch the file again", weights=file)
        self.refused("nowhere", weights=self.folder / "nowhere")


if __name__ == "__main__":
    helper.main()
