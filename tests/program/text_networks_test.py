"""Networks that read tokens, exported by PyTorch. tests/data/gpt2-hf.onnx is transformers' GPT2LMHeadModel (2 layers, 2
heads, width 8, 33 tokens, 16 positions, eager attention, without dropout) with an open batch and length, as
torch.onnx.export(optimize=False) writes it, without descriptions. llama-hf.onnx is LlamaForCausalLM, likewise, with one
layer, 12 hidden units and 1 head of keys and values; bert-hf.onnx is BertForMaskedLM with 16 hidden units, 34 tokens, and
pad_token_id=None. bert-inputs-hf.onnx is the same network, exported without a wrapper and with its default attention, for
the inputs input_ids, attention_mask and token_type_ids."""
import json
import pathlib
import unittest

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import helper
import weights_test

DATA = pathlib.Path(__file__).parent.parent / "data"
NETWORK = DATA / "gpt2-hf.onnx"
WINDOWS, LENGTH, VOCABULARY = 4, 8, 33

# Losses of PyTorch in float64. All windows are a batch, so their order has no effect.
SGD = [3.4976499, 3.4499944, 3.3909708, 3.3346217, 3.2687079, 3.1775127, 3.0686577, 2.9815685, 2.8666587, 2.7411848,
       2.6223787, 2.4863313, 2.3503915, 2.2086992, 2.0737897, 1.9287786, 1.7774182, 1.6445638, 1.5146622, 1.3924065]
ADAMW = [3.4976499, 3.391368, 3.3073257, 3.2236662, 3.1491106, 3.0858612, 3.0246939, 2.9625484, 2.8973734, 2.8349003,
         2.7709649, 2.7073915, 2.642164, 2.5761196, 2.5094808, 2.443466, 2.3778194, 2.3117025, 2.2453083, 2.1778476]
LLAMA_SGD = [3.6565834, 3.5598841, 3.3930861, 3.2191133, 3.0530172, 2.9034647, 2.7638489, 2.6221767, 2.4784303, 2.3267113,
             2.1516727, 1.9425894, 1.7270898, 1.5268313, 1.3226249, 1.132673, 0.9564835, 0.7728723, 0.620104, 0.5076556]
LLAMA_ADAMW = [3.6565834, 3.4748446, 3.2968019, 3.1394587, 3.0071625, 2.8894141, 2.7816339, 2.6816827, 2.5853636, 2.4919107,
               2.4035354, 2.321289, 2.2426228, 2.165893, 2.0907623, 2.0137796, 1.935795, 1.8593356, 1.7820237, 1.708514]
# With the masks of the seed 1, which PyTorch was given.
BERT_SGD = [3.3779718, 3.4458552, 3.708733, 3.4662278, 4.1749741, 3.3480469, 2.7891193, 3.5735552, 3.9392634, 3.5504227,
            2.924591, 3.0891166, 3.105084, 3.9347449, 2.8771176, 4.0339115, 4.0056424, 3.559757, 3.1982327, 3.0782679]
BERT_ADAMW = [3.3779718, 3.4716101, 3.9153532, 3.4660575, 4.10742, 3.4622226, 3.3578872, 3.6455994, 3.449576, 3.5393858,
              3.2326084, 3.2017991, 3.4158551, 3.5462122, 3.0097514, 3.9296248, 3.9824318, 3.4864832, 2.4399828, 3.0649136]
ADAMW_OPTIONS = ("--optimizer", "adamw,beta2=0.95", "--lr", 0.01, "--weight-decay", 0.1)


def write_classifier(path):
    """The mean of embedded tokens, and a dense layer."""
    random = np.random.default_rng(1)
    parameters = {"table.weight": random.normal(size=(32, 6)), "head.weight": random.normal(size=(3, 6)), "head.bias": np.zeros(3)}
    make = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [make("Gather", ["table.weight", "tokens"], ["e"]), make("ReduceMean", ["e"], ["mean"], axes=[1], keepdims=0),
         make("Gemm", ["mean", "head.weight", "head.bias"], ["logits"], transB=1)], "classifier",
        [onnx.helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 8])],
        [onnx.helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(values.astype(np.float32), name) for name, values in parameters.items()])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(path))


class TextNetworks(helper.ProgramTest):
    @classmethod
    def setUpClass(cls):
        """Writes a file for each window, so that none is shifted. Masked windows have no next token."""
        super().setUpClass()
        cls.files, cls.masked_files = ([cls.write(s, length) for s in range(WINDOWS)] for length in (LENGTH + 1, LENGTH))

    @classmethod
    def write(cls, s, length):
        with helper.h5py.File(cls.shared / f"{s}-{length}.h5", "w") as file:
            file.attrs["vocabulary"] = np.uint64(VOCABULARY)
            for split in ("train", "validation"):
                file[f"{split}/tokens"] = np.array([(5 * i * i + 3 * s * i + 7 * s + i) % VOCABULARY for i in range(length)], np.uint16)
                file[f"{split}/documents"] = np.array([0, length], np.uint64)
        return cls.shared / f"{s}-{length}.h5"

    def losses(self, out, *options, ranks, epochs=20, network=NETWORK):
        files = self.masked_files if "masked" in options else self.files
        self.succeed("train", "--model", network, "--data", *files, "--length", LENGTH, "--global-batch", WINDOWS,
                     "--epochs", epochs, "--metrics-every", 1, "--out", out, *options, ranks=ranks)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def test_steps_have_the_losses_of_pytorch(self):
        sgd = self.losses(self.folder / "sgd", "--lr", 0.1, ranks=1)
        np.testing.assert_allclose(sgd, SGD, rtol=0, atol=2e-6)
        adamw = self.losses(self.folder / "adamw", *ADAMW_OPTIONS, ranks=2)
        np.testing.assert_allclose(adamw, ADAMW, rtol=0, atol=2e-6)

    def test_llama_has_the_losses_of_pytorch(self):
        network = DATA / "llama-hf.onnx"
        sgd = self.losses(self.folder / "sgd", "--lr", 0.1, ranks=2, network=network)
        np.testing.assert_allclose(sgd, LLAMA_SGD, rtol=0, atol=4e-6)
        adamw = self.losses(self.folder / "adamw", *ADAMW_OPTIONS, ranks=1, network=network)
        np.testing.assert_allclose(adamw, LLAMA_ADAMW, rtol=0, atol=4e-6)
        layers = self.folder / "layers.json"
        self.succeed("models", "--model", network, "--json", layers)
        operations = [layer["operation"] for layer in json.loads(layers.read_text())["models"]["layers"]]
        self.assertEqual([operations.count(one) for one in ("layer norm", "attention")], [3, 1])

    def test_bert_predicts_masked_tokens_with_the_losses_of_pytorch(self):
        network, masked = DATA / "bert-hf.onnx", ("--loss", "masked")
        sgd = self.losses(self.folder / "sgd", "--lr", 0.1, *masked, ranks=3, network=network)
        np.testing.assert_allclose(sgd, BERT_SGD, rtol=0, atol=4e-6)
        run = self.folder / "adamw"
        self.losses(run, *ADAMW_OPTIONS, *masked, ranks=1, network=network, epochs=10)
        adamw = self.losses(run, *ADAMW_OPTIONS, *masked, "--resume", ranks=2, network=network)
        np.testing.assert_allclose(adamw[-10:], BERT_ADAMW[10:], rtol=0, atol=4e-6)
        evaluations = []
        for ranks in (1, 2):
            evaluation = self.folder / f"{ranks}.json"
            self.succeed("eval", "--data", *self.masked_files, "--checkpoint", run, "--split", "validation", "--json", evaluation,
                         ranks=ranks)
            evaluations.append(json.loads(evaluation.read_text()))
        self.assertEqual(evaluations[0]["loss"], evaluations[1]["loss"])
        self.assertNotIn("bits_per_byte", evaluations[0])
        weights = self.folder / "back.safetensors"
        self.succeed("export", weights, "--checkpoint", run)
        _, tensors = weights_test.read_safetensors(weights)
        self.assertEqual(len(tensors), 44)
        for kind, other in (("weight", "net.bert.embeddings.word_embeddings.weight"), ("bias", "net.cls.predictions.bias")):
            np.testing.assert_array_equal(tensors["net.cls.predictions.decoder." + kind], tensors[other])
        self.assertIn("was trained for masked tokens", helper.run("generate", "--checkpoint", run, "--prompt", "a").err)

    def test_masks_and_token_types_are_those_of_full_windows(self):
        network = DATA / "bert-inputs-hf.onnx"
        sgd = self.losses(self.folder / "run", "--lr", 0.1, "--loss", "masked", ranks=2, network=network)
        np.testing.assert_allclose(sgd, BERT_SGD, rtol=0, atol=4e-6)
        check = self.succeed("models", "--check", network).out
        for line in ("its input attention_mask is 1 for every token: windows are full",
                     "its input token_type_ids is 0 for every token: windows are full"):
            self.assertIn(line, check)
        layers = self.folder / "layers.json"
        self.succeed("models", "--model", network, "--json", layers)
        operations = [layer["operation"] for layer in json.loads(layers.read_text())["models"]["layers"]]
        self.assertEqual(operations.count("attention"), 2)

    def test_texts_with_labels_are_imported_trained_and_evaluated(self):
        source, data = self.folder / "texts", self.folder / "texts.h5"
        source.mkdir()
        texts = np.arange(32).reshape(4, 8)
        for split in ("train", "test"):
            np.save(source / f"{split}_tokens.npy", texts)
            np.save(source / f"{split}_labels.npy", np.array([0, 2, 1, 2]))
        helper.import_arrays(data, source)
        network = self.folder / "net.onnx"
        write_classifier(network)
        run = self.folder / "run"
        self.succeed("train", "--model", network, "--data", data, "--global-batch", 4, "--epochs", 30, "--lr", 0.5, "--out", run,
                     ranks=2)
        evaluation = self.folder / "evaluation.json"
        self.succeed("eval", "--data", data, "--checkpoint", run, "--json", evaluation)
        self.assertEqual(json.loads(evaluation.read_text())["accuracy"], 1)

    def test_the_run_needs_no_file_and_gives_pytorch_all_names(self):
        run = self.folder / "run"
        self.losses(run, "--lr", 0.1, ranks=1, epochs=10)
        resumed = self.losses(run, "--lr", 0.1, "--resume", ranks=1)
        np.testing.assert_allclose(resumed[-10:], SGD[10:], rtol=0, atol=2e-6)
        evaluation = self.folder / "evaluation.json"
        self.succeed("eval", "--data", *self.files, "--checkpoint", run, "--split", "validation", "--json",
                     evaluation)
        self.assertLess(json.loads(evaluation.read_text())["loss"], SGD[-1])
        weights = self.folder / "back.safetensors"
        self.succeed("export", weights, "--checkpoint", run)
        _, tensors = weights_test.read_safetensors(weights)
        self.assertEqual(len(tensors), 29)
        np.testing.assert_array_equal(tensors["net.lm_head.weight"], tensors["net.transformer.wte.weight"])
        self.assertEqual(tensors["net.transformer.h.0.attn.c_attn.weight"].shape, (8, 24))

    def test_what_does_not_fit_is_refused(self):
        self.assertIn("reads later tokens: train a masked language model with --loss masked", helper.run(
            "train", "--model", DATA / "bert-hf.onnx", "--data", *self.files, "--length", LENGTH, "--out", self.folder / "run").err)
        data = ["--data", *self.files, "--out", self.folder / "run"]
        self.assertIn("there is no element 16 among 16 (windows have 17 tokens: see --length)",
                      helper.run("train", "--model", NETWORK, *data, "--length", 17).err)
        self.assertIn("it reads tokens, and the data is images", helper.run(
            "train", "--model", NETWORK, "--data", helper.write_data(self.folder / "images.h5", 60, 10, 12, 1), "--out",
            self.folder / "run").err)


if __name__ == "__main__":
    unittest.main()
