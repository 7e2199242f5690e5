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

    def test_wrapped_names_and_a_missing_head(self):
        file = self.exported(self.trained("run", max_steps=2))
        _, tensors = read_safetensors(file)
        write_safetensors(file, {f"module._orig_mod.{name}": values for name, values in tensors.items()
                                 if not name.startswith("fc3.")})
        out = self.folder / "next"
        result = self.succeed(*self.training(out, weights=file, max_steps=1, lr=1e-30))
        self.assertIn("whose names have 'module._orig_mod.' in addition to the network's", result.out)
        self.assertIn("but not of fc3, which the file does not have: it begins with random weights", result.out)
        found = helper.read_checkpoint(out / "checkpoint.h5")["parameters"]
        np.testing.assert_allclose(found["fc2.weight"], tensors["fc2.weight"], rtol=0, atol=1e-29)
        write_safetensors(file, {name: values for name, values in tensors.items() if name != "fc3.bias"})
        self.refused("missing fc3.bias", weights=file)

    def test_weights_in_several_files(self):
        file = self.exported(self.trained("run", max_steps=2))
        _, tensors = read_safetensors(file)
        parts = ({}, {})
        for number, (name, values) in enumerate(tensors.items()):
            parts[number % 2][name] = values
        for number, part in enumerate(parts):
            write_safetensors(self.folder / f"model-0000{number + 1}-of-00002.safetensors", part)
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {name: f"model-0000{number + 1}-of-00002.safetensors"
                                                    for number, part in enumerate(parts) for name in part}}))
        out = self.trained("next", weights=index, lr=1e-30)
        found = helper.read_checkpoint(out / "checkpoint.h5")["parameters"]
        np.testing.assert_allclose(found["fc3.weight"], tensors["fc3.weight"], rtol=0, atol=1e-29)
        (self.folder / "model-00002-of-00002.safetensors").unlink()
        self.refused("model-00002-of-00002.safetensors is missing beside it", weights=index)

    def test_a_checkpoint_of_other_classes(self):
        """A dense layer over images, whose weights have the shape of a convolution's in a checkpoint."""
        run = self.trained("run", model="resnet20", data=self.colours)
        few = self.folder / "few.h5"
        few.write_bytes(self.colours.read_bytes())
        with helper.h5py.File(few, "r+") as file:
            file.attrs["classes"] = [f"class {n}" for n in range(4)]
            for split in ("train", "test"):
                file[f"{split}/labels"][...] %= 4
        result = self.succeed(*self.training(self.folder / "next", model="resnet20", data=few, weights=run, max_steps=1))
        self.assertIn("but not of fc, which has 10 classes there: it begins with random weights", result.out)

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


class FineTuning(helper.ProgramTest):
    def test_frozen_weights_keep_their_bytes_through_files(self):
        """What is exported, read, trained but for the head with a rate of almost 0, and exported again is the same."""
        colours = helper.write_data(self.folder / "colours.h5", 60, 10, 16, 3)
        files = []
        weights = {}
        for number, ranks in enumerate((0, 2)):
            out = self.folder / f"run{number}"
            options = {"model": "resnet20", "data": colours, "max_steps": 2, "global_batch": 20, **weights}
            result = self.succeed(*self.training(out, **options), ranks=ranks)
            files.append(self.folder / f"{number}.safetensors")
            self.succeed("export", files[-1], "--checkpoint", out)
            weights = {"weights": files[0], "freeze": "conv1,bn1,layer*,fc.bias", "lr": 1e-30}
        self.assertIn("frozen ", result.out)
        self.assertIn("gradients 2.", result.out)
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_a_run_with_frozen_layers_resumes(self):
        options = {"model": "cnn", "freeze": "conv1,fc1.bias", "lr_for": "fc1=0.5,head=2", "ema": 0.9,
                   "weight_decay": "0,conv2=0.01,fc2=0.1", "global_batch": 50}
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, **options)
        for ranks, steps in ((1, 4), (1, 10)):
            self.train(parts, ranks=ranks, max_steps=steps, resume=True, **options)
        self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")
        state = helper.read_checkpoint(whole / "checkpoint.h5")
        self.assertEqual(list(state["attributes"]["frozen"]), ["fc1.bias", "conv1.weight", "conv1.bias"])
        self.assertEqual(state["parameters"].keys() - state["velocity"].keys(),
                         {"fc1.bias", "conv1.weight", "conv1.bias"})
        for options["freeze"], problem in (("none", "was made with another --freeze: 3 parameters were frozen"),
                                           ("conv1,fc2.bias", "resume it with the same --freeze")):
            result = helper.run(*self.training(parts, resume=True, max_steps=12, **options))
            self.assertNotEqual(result.status, 0)
            self.assertIn(problem, result.messages[0])

    def test_frozen_layers_have_no_gradients_in_a_step(self):
        out, file = self.folder / "run", self.folder / "step.json"
        self.train(out, model="cnn", freeze="conv1,conv2,fc1.bias", max_steps=1)
        self.assertIn("frozen      5 of 8 parameters", self.succeed("checkpoint", "show", out).out)
        self.succeed("bench", "step", "--from", out, "--batch", 4, "--seconds", 0.01, "--json", file)
        layers = {layer["name"]: layer for layer in json.loads(file.read_text())["profile"]["layers"]}
        self.assertEqual({name: len(layer["gradient_bytes"]) for name, layer in layers.items()},
                         {"input": 0, "conv1": 0, "pool1": 0, "conv2": 0, "pool2": 0, "fc1": 1, "fc2": 2, "loss": 2})
        self.assertEqual({name for name, layer in layers.items() if layer["backward_ms"] > 0}, {"fc1", "fc2", "loss"})
        self.assertTrue(all(layer["forward_ms"] > 0 for layer in layers.values()))

    def test_any_number_of_ranks_gives_the_same_weights(self):
        options = {"model": "cnn", "freeze": "conv1,conv2.bias", "weight_decay": "*.bias=0.1", "global_batch": 50}
        for ranks in (1, 3):
            self.train(self.folder / f"of{ranks}", ranks=ranks, **options)
        self.assertLess(self.farthest(self.folder / "of1/checkpoint.h5", self.folder / "of3/checkpoint.h5"), 1e-4)

    def test_rates_and_decay_of_their_own(self):
        def trained(name, **options):
            out = self.folder / name
            self.train(out, model="lenet", max_steps=1, optimizer="sgd,momentum=0", **options)
            return helper.read_checkpoint(out / "checkpoint.h5")["parameters"]

        start = trained("start", lr=1e-30)
        plain = trained("plain")
        other = trained("other", lr_for="conv1=0.5,conv?.bias=0,head=3", weight_decay="fc1=0.25")
        for name, values in plain.items():
            step = values - start[name]
            expected = step * {"conv1.weight": 0.5, "conv1.bias": 0, "conv2.bias": 0, "fc3.weight": 3,
                               "fc3.bias": 3}.get(name, 1)
            if name == "fc1.weight":
                expected = step - 0.02 * 0.25 * start[name]
            np.testing.assert_allclose(other[name] - start[name], expected, rtol=0, atol=2e-7, err_msg=name)

    def test_fine_tuning_beats_training_from_scratch(self):
        """On images of 4 classes of 10, after training on those of the others."""
        def part(name, classes, count):
            path = self.folder / name
            with helper.h5py.File(self.data) as file, helper.h5py.File(path, "w") as out:
                for split in ("train", "test"):
                    labels = file[f"{split}/labels"][()]
                    chosen = np.isin(labels, classes).nonzero()[0][:count]
                    out[f"{split}/images"] = file[f"{split}/images"][()][chosen]
                    out[f"{split}/labels"] = np.searchsorted(classes, labels[chosen]).astype(np.int32)
                for key in ("mean", "deviation"):
                    out.attrs[key] = file.attrs[key]
                out.attrs["classes"] = [f"class {n}" for n in classes]
            return path

        self.train(self.folder / "before", model="cnn", data=part("before.h5", [0, 1, 3, 5, 7, 8], 500), epochs=4)
        data = part("after.h5", [2, 4, 6, 9], 40)
        options = {"model": "cnn", "data": data, "batch": 8, "max_steps": 2}
        scratch = self.train(self.folder / "scratch", **options)
        tuned = self.train(self.folder / "tuned", weights=self.folder / "before", freeze="conv1,conv2", **options)
        found = [run["evaluations"][-1]["test_accuracy"] for run in (scratch, tuned)]
        print(f"  test accuracy from scratch {found[0]:.3f}, fine-tuned {found[1]:.3f}")
        self.assertGreater(found[1], found[0] + 0.1)

    def test_misuse_is_refused(self):
        for option, value, problem in (
                ("freeze", "conv3", "--freeze: no parameter matches conv3; the network's are those of conv1, conv2, fc1, fc2"),
                ("lr_for", "conv3=1", "--lr-for: no parameter matches conv3"),
                ("weight_decay", "x*=1", "--weight-decay: no parameter matches x*"),
                ("lr_for", "conv1", "--lr-for: expected PATTERN=NUMBER, such as layer1=0.1, not \"conv1\""),
                ("lr_for", "conv1=-1", "--lr-for: expected a number >= 0, not \"-1\""),
                ("freeze", "*", "nothing to train")):
            with self.subTest(option=option, value=value):
                result = helper.run(*self.training(self.folder / "refused", model="cnn", **{option: value}))
                self.assertNotEqual(result.status, 0)
                self.assertIn(problem, result.messages[0])


if __name__ == "__main__":
    helper.main()
