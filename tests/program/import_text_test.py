"""Importing text, and reading it."""
import gzip
import json
import os
import pathlib
import random
import signal
import time
import unittest

import h5py
import numpy as np

import helper

WORDS = "the of a token and in to was is for on that with said by it from at his an be as are not he she".split()


def prose(seed, words):
    """Text with characters of several lengths."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS + ["Ångström", "naïve,", "don't", "42.\n", "🙂"]) for _ in range(words))


def write_source(folder, files=30):
    """Text files in subfolders, some compressed, and what is skipped. Returns the documents in order of path."""
    documents = {}
    for number in range(files):
        path = folder / f"{number % 3}" / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = prose(number, 20 + 7 * number).encode()
        if number % 5 == 0:
            content += b"\xff\xfe " + b"\xe2\x82"
        if number % 4 == 1:
            path = path.with_name(path.name + ".gz")
            path.write_bytes(gzip.compress(content, mtime=0))
        else:
            path.write_bytes(content)
        documents[path] = content
    (folder / "1/empty.txt").touch()
    (folder / "2/picture.bin").write_bytes(b"text\0text")
    (folder / "2/damaged.gz").write_bytes(gzip.compress(b"a text\n" * 999, mtime=0)[:-30])
    (folder / ".hidden").write_bytes(b"hidden")
    return [documents[path] for path in sorted(documents)]


class ImportText(helper.ProgramTest):
    def setUp(self):
        super().setUp()
        self.source, self.output = self.folder / "texts", self.folder / "text.h5"

    def do_import(self, *more, ranks=0, output=None, sources=None):
        return self.succeed("import", output or self.output, *(sources or [self.source]), "--from", "text", *more,
                            ranks=ranks)

    def split(self, name, path=None):
        """The documents of a split, as arrays of tokens, and its attributes."""
        with h5py.File(path or self.output, "r") as file:
            tokens, offsets = file[f"{name}/tokens"][()], file[f"{name}/documents"][()]
            self.assertEqual((offsets.dtype, offsets[0], offsets[-1]), (np.uint64, 0, len(tokens)))
            return [tokens[a:b] for a, b in zip(offsets, offsets[1:])], dict(file[name].attrs)

    def texts(self, name, path=None):
        """The documents of a split of bytes."""
        documents, attributes = self.split(name, path)
        for tokens in documents:
            self.assertEqual((tokens.dtype, tokens[-1]), (np.uint16, 256))
        texts = [bytes(tokens[:-1].astype(np.uint8)) for tokens in documents]
        self.assertEqual(attributes["bytes"], sum(map(len, texts)))
        return texts

    def test_folders_of_files(self):
        documents = write_source(self.source)
        result = self.do_import()
        self.assertEqual(self.texts("train"), documents)
        with h5py.File(self.output, "r") as file:
            self.assertEqual((helper.text(file.attrs["tokenizer"]), file.attrs["vocabulary"]), ("bytes", 257))
            self.assertEqual(json.loads(helper.text(file.attrs["tokenizer_data"]))["end_of_text"], 256)
            self.assertEqual(list(file), ["train"])
        tokens = sum(map(len, documents)) + len(documents)
        self.assertRegex(result.out, rf"train: 30 documents of .*, {tokens} tokens, \d\.\d\d bytes per token, 3 skipped; "
                                     r"24 bytes in 6 of them are not UTF-8")
        self.assertRegex(result.out, r"tokenizer bytes, 257 tokens")
        self.assertRegex(result.out, r"text\.h5\.skipped\.txt: .*: 1 binary, 1 empty, 1 unreadable")
        skipped = (self.folder / "text.h5.skipped.txt").read_text()
        self.assertRegex(skipped, r"1/empty\.txt\tempty\n(.*\n)*.*2/damaged\.gz\tcannot read.*\n.*2/picture\.bin\tbinary")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["text.h5", "text.h5.skipped.txt", "texts"])
        result = helper.run("import", self.output, self.source, "--from", "text", "--on-bad-sample", "fail")
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        self.assertRegex(result.messages[0], "1/empty.txt: empty")

    def test_bit_identical_for_any_number_of_ranks(self):
        write_source(self.source)
        for name, options in (("bytes", []), ("bpe", ["--tokenizer", "train:500", "--hold-out", 0.2]),
                              ("shards", ["--tokenizer", "train:300", "--shards", 3])):
            contents = []
            for ranks in (0, 1, 2, 3):
                folder = self.folder / f"{name}-{ranks}"
                folder.mkdir()
                self.do_import(*options, ranks=ranks, output=folder / "text.h5")
                contents.append({path.name: path.read_bytes() for path in folder.glob("*.h5")})
            self.assertEqual(len(contents[0]), 3 if name == "shards" else 1)
            for ranks, content in enumerate(contents):
                self.assertEqual(content, contents[0], f"{name}: {ranks} ranks make other bytes")

    def test_files_and_several_sources(self):
        write_source(self.source)
        for name, text in (("z.txt", b"last\n"), ("a.txt", b"first\n")):
            (self.folder / name).write_bytes(text)
        self.do_import(sources=[self.folder / "z.txt", self.source / "0", self.folder / "a.txt"])
        texts = self.texts("train")
        self.assertEqual((texts[0], texts[-1], len(texts)), (b"last\n", b"first\n", 12))

    def test_splits(self):
        for name, text in (("train/a", b"x"), ("train/b/c.txt", b"y"), ("test/a", b"t"), ("val/a", b"v"), ("README", b"z")):
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(text)
        self.do_import()
        self.assertEqual((self.texts("train"), self.texts("test")), ([b"x", b"y"], [b"v"]))

    def test_held_out_documents(self):
        documents = write_source(self.source)
        result = self.do_import("--hold-out", 0.1)
        train, held_out = self.texts("train"), self.texts("validation")
        self.assertEqual(len(held_out), 3)
        self.assertEqual([text for text in documents if text not in held_out], train)
        self.assertEqual([text for text in documents if text in held_out], held_out)
        self.assertIn("; 3 of them held out for validation", result.out)

    def test_the_end_of_the_only_document_is_held_out(self):
        self.source.mkdir()
        text = prose(1, 3000).encode()
        (self.source / "b.txt").write_bytes(text)
        (self.source / "a.txt").touch()  # a document that is skipped does not count
        for tokenizer in ("bytes", "train:400"):
            result = self.do_import("--hold-out", 0.1, "--tokenizer", tokenizer)
            (train,), attributes = self.split("train")
            (held_out,), held_out_attributes = self.split("validation")
            self.assertEqual(len(held_out), round(0.1 * (len(train) + len(held_out))))
            self.assertIn(f"1 document of", result.out)
            self.assertIn(f"; its last {len(held_out)} tokens held out for validation", result.out)
            self.assertEqual(attributes["bytes"] + held_out_attributes["bytes"], len(text))
            if tokenizer == "bytes":
                self.assertEqual(bytes(list(train) + list(held_out[:-1])), text)
                self.assertEqual(held_out_attributes["bytes"], len(held_out) - 1)

    def test_a_large_document(self):
        """Larger than what is read, encoded, written and copied at once, with characters across these borders."""
        self.source.mkdir()
        text = "".join(prose(seed, 9000) + "\n" for seed in range(100)).encode() + b"x" * 300000 + b" " * 300000
        self.assertGreater(len(text), 4 << 20)
        (self.source / "large.txt").write_bytes(text)
        (self.source / "large.txt.gz").write_bytes(gzip.compress(text, 1, mtime=0))
        self.do_import(ranks=2)
        self.assertEqual(self.texts("train"), [text, text])
        self.do_import("--tokenizer", "train:300", ranks=2)
        documents, attributes = self.split("train")
        self.assertEqual(attributes["bytes"], 2 * len(text))
        np.testing.assert_array_equal(*documents)
        with h5py.File(self.output, "r") as file:
            model = json.loads(helper.text(file.attrs["tokenizer_data"]))
        pieces = {token: bytes([byte]) for byte, token in enumerate(model["bytes"])}
        merges = model["merges"]
        for left, right, merged in zip(merges[::3], merges[1::3], merges[2::3]):
            pieces[merged] = pieces[left] + pieces[right]
        self.assertEqual(len(pieces), 299)
        self.assertEqual(b"".join(pieces[token] for token in documents[0][:-1]), text)

    def test_gpt2_files(self):
        """Small ones: their tokens are the bytes in reverse order, and two merges."""
        def spelled(byte):
            shift = 0x100 if byte <= 0x20 else 0x121 - 0x7f if 0x7f <= byte <= 0xa0 else 0x143 - 0xad if byte == 0xad else 0
            return chr(byte + shift)
        tokens = {spelled(byte): 255 - byte for byte in range(256)}
        tokens |= {"Ġt": 256, "he": 257, "<|endoftext|>": 258}
        self.source.mkdir()
        (self.source / "a").write_text("the the")
        model = self.folder / "model"
        model.mkdir()
        (model / "encoder.json").write_text(json.dumps(tokens))
        (model / "vocab.bpe").write_text("#version: 0.2\nĠ t\nh e\n")
        self.do_import("--tokenizer", f"gpt2:{model}")
        (tokens,), attributes = self.split("train")
        self.assertEqual(tokens.tolist(), [255 - ord("t"), 257, 256, 257, 258])
        self.assertEqual(attributes["bytes"], 7)

    def test_options_that_do_not_fit(self):
        write_source(self.source, 3)
        for names, *arguments in (
                ("--size: is for images, not for --from text", "--size", "8x8"),
                ("--classes: is for images", "--classes", "a,b"),
                ("--chunk: is for images", "--chunk", 8),
                ("--tokenizer words: must be bytes, gpt2:FOLDER, or train:N", "--tokenizer", "words"),
                ("--tokenizer train:256: must have a vocabulary of 257 to", "--tokenizer", "train:256"),
                ("--tokenizer train:x", "--tokenizer", "train:x"),
                ("none/encoder.json: missing", "--tokenizer", "gpt2:none"),
                ("none.txt: no such file or folder", self.folder / "none.txt"),
                ("--shards 4: there are only 3 training documents", "--shards", 4)):
            result = helper.run("import", self.output, self.source, "--from", "text", *arguments)
            self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
            self.assertIn(names, result.messages[0])
        result = helper.run("import", self.output, self.source, "--from", "folder", "--tokenizer", "bytes")
        self.assertIn("--tokenizer: is for --from text", result.err)
        result = helper.run("import", self.output, self.source, self.source, "--from", "folder")
        self.assertIn("only --from text takes several", result.err)

    def test_nothing_to_import(self):
        self.source.mkdir()
        result = helper.run("import", self.output, self.source, "--from", "text")
        self.assertIn("texts: has no files", result.err)
        (self.source / "a").touch()
        result = helper.run("import", self.output, self.source, "--from", "text")
        self.assertIn("none of the train documents is usable (1 skipped", result.err)

    def test_resumes_after_a_kill(self):
        documents = {}
        for number in range(6):  # a piece each
            path = self.source / f"{number:02}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes((prose(number, 20000) + "\n").encode() * 110)
        self.assertGreater(path.stat().st_size, 8 << 20)
        whole = self.folder / "whole.h5"
        self.do_import("--tokenizer", "train:300", output=whole)
        arguments = ["import", self.output, self.source, "--from", "text", "--tokenizer", "train:300"]
        parts = self.folder / "text.h5.parts"
        process = helper.start(*arguments, ranks=2)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        deadline = time.monotonic() + 30
        while not list(parts.glob("train-*.json")):
            self.assertTrue(process.poll() is None and time.monotonic() < deadline, "no part appears")
            time.sleep(0.002)
        helper.kill(process)
        self.assertFalse(self.output.exists())
        result = helper.run(*arguments[:-1], "bytes")
        self.assertRegex(result.err, r"text\.h5\.parts: has an unfinished import with another tokenizer")
        result = self.do_import("--tokenizer", "train:300", ranks=3)
        self.assertRegex(result.out, r"[1-6] of 6 pieces are finished; continuing")
        self.assertEqual(self.output.read_bytes(), whole.read_bytes())
        self.assertFalse(parts.exists())

    def test_text_is_read(self):
        """Also a file that another program made."""
        with h5py.File(self.output, "w") as file:
            file["train/tokens"] = np.arange(5000, dtype=np.uint16) % 300
            file["train/documents"] = np.array([0, 1000, 5000], dtype=np.uint64)
            file.attrs["vocabulary"] = 300
        result = self.succeed("bench", "input", "--data", self.output, "--length", 16, "--seconds", 0.2, "--batch", 8)
        self.assertRegex(result.out, r"16 tokens: shifted randomly; in random order")
        self.assertRegex(result.out, r"\d+ windows/s")
        result = helper.run("bench", "input", "--data", self.output, "--image", 32)
        self.assertEqual(result.messages, ["annulus: --image: is for images, and the data is text; remove the option"])
        result = helper.run("bench", "input", "--data", self.data, "--length", 32)
        self.assertEqual(result.messages, ["annulus: --length: is for text, and the data is images; remove the option"])


if __name__ == "__main__":
    helper.main()
