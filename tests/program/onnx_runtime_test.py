"""export_test.py's checks of exported networks, with ONNX Runtime and more models."""
import unittest

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

import export_test
import helper


def with_runtime(file, images):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["logits", "probabilities"], {"images": images})


@unittest.skipIf(onnxruntime is None, "no ONNX Runtime here: pip install onnxruntime")
class OnnxRuntime(export_test.ExportTest):
    def test_models_give_the_same_results(self):
        self.check_models(with_runtime)

    def test_models_with_large_dense_layers(self):
        for model in ("alexnet", "vgg16"):
            with self.subTest(model):
                self.check(model, 80, 3, with_runtime, max_steps=2)


if __name__ == "__main__":
    helper.main()
