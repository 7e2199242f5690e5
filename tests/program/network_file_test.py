"""Networks of ONNX files are trained, resumed without the file, evaluated and exported again."""
import json

import numpy as np
import onnx
from onnx import TensorProto, helper as make, numpy_helper

import helper
import onnx_numpy
import weights_test
from import_test import encoded, picture


def network(nodes, tensors, classes=10, size=12, batch="batch", outputs=("logits",), image=None):
    """A model with float32 images {batch, 1, size, size} as its input x."""
    image = image or [batch, 1, size, size]
    graph = make.make_graph(
        nodes, "net", [make.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [make.make_tensor_value_info(name, TensorProto.FLOAT, [batch, classes]) for name in outputs],
        [numpy_helper.from_array(values, name) for name, values in tensors.items()])
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def small(seed=1, channels=1, **options):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(0, 0.3, shape).astype(np.float32)

    tensors = {"body.0.weight": normal(4, channels, 3, 3), "body.0.bias": normal(4),
               "head.weight": normal(10, 4), "head.bias": normal(10), "scale": normal(4, 1, 1)}
    nodes = [make.make_node("Conv", ["x", "body.0.weight", "body.0.bias"], ["a"], "conv", kernel_shape=[3, 3]),
             make.make_node("Sigmoid", ["a"], ["gate"], "sigmoid"),
             make.make_node("Mul", ["a", "gate"], ["silu"], "mul"),
             make.make_node("Mul", ["silu", "scale"], ["scaled"], "scaling"),
             make.make_node("GlobalAveragePool", ["scaled"], ["pooled"], "pool"),
             make.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
             make.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["logits"], "gemm", transB=1)]
    return network(nodes, tensors, **options), tensors


def mark(model, tensor, kind):
    """As torch.export does, in a field that Debian's onnx does not know."""
    entry = onnx.StringStringEntryProto(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
    content = entry.SerializeToString()
    value = make.make_tensor_value_info(tensor, TensorProto.FLOAT, None)
    model.graph.value_info.add().ParseFromString(value.SerializeToString() + bytes([4 << 3 | 2, len(content)]) + content)


class NetworkFile(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.images = helper.write_data(cls.shared / "images.h5", 60, 10, 12, 1)

    def save(self, model, name="net.onnx"):
        file = self.folder / name
        onnx.save(model, file)
        return file

    def refused(self, model, *words):
        result = helper.run("models", "--check", self.save(model))
        self.assertNotEqual(result.status, 0)
        for word in words:
            self.assertIn(word, result.out + result.err)

    def test_training_begins_with_the_values_of_the_file(self):
        model, tensors = small()
        out = self.folder / "run"
        self.train(out, model=self.save(model), data=self.images, lr=1e-9, max_steps=1)
        found = helper.read_checkpoint(out / "checkpoint.h5")["parameters"]
        self.assertEqual(set(found), set(tensors))
        for name, values in tensors.items():
            np.testing.assert_allclose(found[name].reshape(values.shape), values, rtol=1e-4, atol=1e-6)

    def test_encoded_images_are_scaled_to_the_size_of_the_export(self):
        images = [encoded(picture(seed, 20, 24)) for seed in range(8)]
        data = self.folder / "photos.h5"
        helper.write_encoded(data, {"train": (images, [seed % 10 for seed in range(8)])})
        file, out = self.save(small(channels=3, image=["batch", 3, 12, 12])[0]), self.folder / "run"
        options = {"model": file, "data": data, "global_batch": 8}
        first = self.succeed(*self.training(out, **options, max_steps=1))
        self.assertIn("input       12x12x3: ", first.out)
        file.unlink()
        self.assertIn("input       12x12x3: ",
                      self.succeed(*self.training(out, **options, epochs=2, resume=True), ranks=2).out)

    def test_a_checkpoint_needs_no_file(self):
        model, _ = small()
        file, out = self.save(model), self.folder / "run"
        self.train(out, model=file, data=self.images, max_steps=2)
        whole = self.folder / "whole"
        self.train(whole, model=file, data=self.images, max_steps=4)
        file.unlink()
        self.train(out, model=file, data=self.images, max_steps=4, resume=True)
        self.assert_same_state(out / "checkpoint.h5", whole / "checkpoint.h5")
        self.succeed("eval", "--checkpoint", out, "--data", self.images)

    def test_an_exported_file_is_the_same_network(self):
        model, tensors = small()
        out = self.folder / "run"
        self.train(out, model=self.save(model), data=self.images, max_steps=2)
        exported = self.folder / "exported.onnx"
        self.succeed("export", exported, "--checkpoint", out)
        onnx.checker.check_model(onnx.load(str(exported)))
        self.assertEqual({tensor.name for tensor in onnx.load(str(exported)).graph.initializer}, set(tensors))
        again = self.folder / "again"
        self.train(again, model=exported, data=self.images, lr=1e-9, max_steps=1)
        first, second = (helper.read_checkpoint(run / "checkpoint.h5")["parameters"] for run in (out, again))
        for name, values in first.items():
            np.testing.assert_allclose(second[name], values, rtol=1e-4, atol=1e-6)

    def test_networks_that_normalize_images_get_the_pixels_that_they_expect(self):
        model, tensors = small()
        for name, value in {"onnx::0": 0, "onnx::255": 255, "onnx::mean": 0.3, "onnx::std": 0.2}.items():
            model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
        for node in reversed([make.make_node("Max", ["x", "onnx::0"], ["limited"], "limit"),
                              make.make_node("Div", ["limited", "onnx::255"], ["scaled_x"], "divide"),
                              make.make_node("Sub", ["scaled_x", "onnx::mean"], ["centred"], "center"),
                              make.make_node("Div", ["centred", "onnx::std"], ["own"], "normalize")]):
            model.graph.node.insert(0, node)
        model.graph.node[4].input[0] = "own"
        file, out, exported = self.save(model), self.folder / "run", self.folder / "exported.onnx"
        images = np.random.default_rng(2).integers(0, 256, (3, 12, 12, 1), dtype=np.uint8)

        def first_layer(out, **options):
            self.train(out, model=file, data=self.images, lr=1e-9, max_steps=1, **options)
            self.succeed("export", exported, "--checkpoint", out, "--overwrite")
            graph = onnx.load(str(exported))
            values = onnx_numpy.all_values(graph, images)
            return values[next(node for node in graph.graph.node if node.op_type == "Conv").input[0]]

        pixels = images.transpose(0, 3, 1, 2).astype(np.float32)
        np.testing.assert_allclose(first_layer(self.folder / "auto"), (pixels / 255 - 0.3) / 0.2, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(first_layer(out, pixels="0..1"), (pixels / 65025 - 0.3) / 0.2, rtol=1e-4, atol=1e-4)
        self.succeed("eval", "--checkpoint", out, "--data", self.images)
        again = helper.run(*self.training(out, model=file, data=self.images, max_steps=2, resume=True))
        self.assertRegex(again.err, "another --pixels")
        out = helper.run("models", "--check", file, "--pixels", "normalized").out
        self.assertIn("--pixels normalized", out)

    def test_files_that_are_no_network_are_named_with_what_to_do(self):
        for name, content, words in (("w.pt", b"PK\3\4", "torch.onnx.export"), ("w.safetensors", b"", "empty"),
                                     ("gone.pth", None, "torch.onnx.export"), ("net.onnx", b"", "fetch it again"),
                                     ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
                                     ("net.onnx", b"\n<!DOCTYPE html>", "web page"),
                                     ("net.onnx", b"\x80\x02}", "pickled")):
            with self.subTest(name=name, content=content):
                if content is not None:
                    (self.folder / name).write_bytes(content)
                result = helper.run(*self.training(self.folder / "run", model=self.folder / name, data=self.images))
                self.assertNotEqual(result.status, 0)
                self.assertEqual(len(result.messages), 1, result)
                self.assertIn(words, result.messages[0])

    def test_names_of_megabytes_are_shortened(self):
        model, _ = small()
        model.graph.node[1].op_type = "N" * 2_000_000
        result = helper.run("models", "--check", self.save(model))
        self.assertLess(len(result.out + result.err), 4000)
        self.assertIn("is not supported", result.out)
        self.assertRegex(result.out, r"operators that are read: .*\bConv, ")

    def test_batch_norms_keep_their_momentum(self):
        model, tensors = small()
        norm = {"norm.weight": np.ones(4), "norm.bias": np.zeros(4), "norm.running_mean": np.arange(4),
                "norm.running_var": np.ones(4)}
        for name, values in norm.items():
            model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        model.graph.node[1].input[0] = model.graph.node[2].input[0] = "n"
        model.graph.node.insert(1, make.make_node("BatchNormalization", ["a", *norm], ["n"], "norm", momentum=1.0))
        out, exported = self.folder / "run", self.folder / "exported.onnx"
        file = self.save(model)
        self.train(out, model=file, data=self.images, max_steps=1)
        file.unlink()
        self.train(out, model=file, data=self.images, max_steps=3, resume=True)
        found = helper.read_checkpoint(out / "checkpoint.h5")["parameters"]
        np.testing.assert_array_equal(found["norm.running_mean"], np.arange(4))  # 1.0 of what they were
        self.succeed("export", exported, "--checkpoint", out)
        written = next(node for node in onnx.load(str(exported)).graph.node if node.op_type == "BatchNormalization")
        self.assertEqual({a.name: a.f for a in written.attribute}["momentum"], 1)

    def test_buffers_keep_their_values_and_names(self):
        model, tensors = small()
        model.producer_name = "pytorch"
        mark(model, "body.0.weight", "BUFFER")
        for name, values in (("table", np.arange(6)), ("unused", np.ones((2, 3), np.float32))):
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        out, file = self.folder / "run", self.save(model)
        result = self.succeed("models", "--check", file)
        line = "trained: 4 tensors; not trained: 1 (body.0.weight); the output does not depend on 1 (unused)"
        self.assertIn(line, result.out)
        for given in ("auto", "random"):
            result = self.succeed(*self.training(out / given, file, data=self.images, lr=0.5, max_steps=2, weights=given))
            self.assertIn(line, result.out)
            weights = self.folder / f"{given}.safetensors"
            self.succeed("export", weights, "--checkpoint", out / given)
            _, found = weights_test.read_safetensors(weights)
            self.assertEqual(set(found), {*tensors, "table", "unused"})
            np.testing.assert_array_equal(found["body.0.weight"], tensors["body.0.weight"])
            np.testing.assert_array_equal(found["table"], np.arange(6))
            self.assertTrue((found["head.bias"] != tensors["head.bias"]).any())
        self.train(self.folder / "again", model=file, data=self.images, max_steps=1, weights=weights)

    def test_layers_may_have_the_names_of_exported_inputs_and_outputs(self):
        model, _ = small()
        names = {"body.0.weight": "images.weight", "body.0.bias": "images.bias", "head.weight": "logits.weight",
                 "head.bias": "logits.bias", "scale": "probabilities"}
        for tensor in model.graph.initializer:
            tensor.name = names[tensor.name]
        for node in model.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        model.graph.node[2].name = "labels"
        out, exported = self.folder / "run", self.folder / "exported.onnx"
        self.train(out, model=self.save(model), data=self.images, max_steps=1)
        self.succeed("export", exported, "--checkpoint", out)
        written = onnx.load(str(exported))
        onnx.checker.check_model(written)
        self.assertEqual([value.name for value in written.graph.output], ["logits", "probabilities"])
        self.assertEqual({tensor.name for tensor in written.graph.initializer},
                         {*names.values(), "probabilities_2"} - {"probabilities"})
        self.train(self.folder / "again", model=exported, data=self.images, max_steps=1)

    def test_a_resumed_run_has_the_same_network(self):
        out = self.folder / "run"
        self.train(out, model=self.save(small()[0]), data=self.images, max_steps=1)
        model, _ = small()
        model.graph.node[1].op_type = "Tanh"
        result = helper.run(*self.training(out, self.save(model), data=self.images, max_steps=2, resume=True))
        self.assertNotEqual(result.status, 0)
        self.assertIn("another file net.onnx", result.messages[0])

    def test_the_result_of_a_check_is_written_as_json(self):
        model, tensors = small(outputs=("logits", "other"))
        model.graph.node.append(make.make_node("Identity", ["logits"], ["other"]))
        out = self.folder / "check.json"
        self.succeed("models", "--check", self.save(model), "--json", out)
        found = json.loads(out.read_text())["models"]
        self.assertEqual(found["problems"], [])
        self.assertEqual(found["notes"], ["its output other is dropped: only the first is trained"])
        self.assertEqual((found["trained_tensors"], found["not_trained"], found["unused"]), (5, [], []))
        self.assertEqual(found["parameters"], sum(values.size for values in tensors.values()))
        model.graph.node[1].op_type = "Sinh"
        result = helper.run("models", "--check", self.save(model), "--json", out, "--overwrite")
        self.assertEqual(result.status, 1)
        self.assertIn("node sigmoid (Sinh)", json.loads(out.read_text())["models"]["problems"][0])

    def test_errors_name_the_node(self):
        model, _ = small()
        model.graph.node[1].op_type = "Sinh"
        self.refused(model, "node sigmoid (Sinh)", "not supported")
        model, _ = small()
        model.graph.node[1].input[0] = "nowhere"
        self.refused(model, "node sigmoid reads nowhere, which nothing computes")
        model, _ = small()
        model.graph.node[1].input[0] = "flat"
        self.refused(model, "node sigmoid reads flat, which is computed after it")
        model, _ = small()
        model.graph.initializer[0].dims[0] = 1 << 40
        self.refused(model, "body.0.weight", "too many elements")
        model, _ = small(image=["batch", 1, "rows", 12])
        self.refused(model, "leaves more than the batch open")
        model, _ = small()
        model.graph.initializer[0].data_location = TensorProto.EXTERNAL
        entry = model.graph.initializer[0].external_data.add()
        entry.key, entry.value = "location", "../secret"
        model.graph.initializer[0].ClearField("raw_data")
        file = self.folder / "net.onnx"
        file.write_bytes(model.SerializeToString())
        result = helper.run("models", "--check", file)
        self.assertIn("outside the file's folder", result.messages[0])


if __name__ == "__main__":
    helper.main()
