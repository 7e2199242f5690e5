"""Texts of tokens with labels: arrays N x length."""
import numpy

from importers.source import Refused, ranges

MOST = (1 << 31) - 1  # tokens of a vocabulary


class Tokens:
    """Texts as whole numbers from 0 on, which are checked."""

    def __init__(self, tokens, place):
        self.tokens, self.shape, self.ndim, self.dtype = tokens, tokens.shape, tokens.ndim, tokens.dtype
        if self.dtype.kind not in "ui" or self.ndim != 2 or 0 in self.shape:
            raise Refused(f"{place}: {'x'.join(map(str, self.shape))} of type {self.dtype}; tokens must be integers, texts x length")
        self.vocabulary = 0
        for some in ranges(tokens):
            block = numpy.asarray(tokens[some])
            self.vocabulary = max(self.vocabulary, int(block.max()) + 1)
            if block.min() < 0 or self.vocabulary > MOST:
                text = int(numpy.argwhere((block < 0) | (block >= MOST))[0][0])
                raise Refused(f"{place}: sample {some.start + text}: token {block[text].min()}; tokens are numbers from 0 to {MOST - 1}")

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


def common_shape(source):
    """The length of the texts. Raises Refused."""
    for split in source.splits.values():
        labels = split.labels.shape
        if len(labels) not in (1, 2) or labels[0] != len(split.images) or labels[-1] == 0:
            raise Refused(f"{split.place}: labels of shape {'x'.join(map(str, labels))} for {len(split.images)} texts")
    lengths = {split.images.shape[1] for split in source.splits.values()}
    if len(lengths) > 1:
        raise Refused(f"{source.splits['test'].images_place}: the length of the texts differs from the training texts'")
    return lengths


def attributes(source, options, _):
    if options.mean or options.std:
        raise Refused("--mean, --std: are for images, and these are texts")
    return {"vocabulary": max(split.images.vocabulary for split in source.splits.values())}


def write(file, name, texts, chosen):
    kind = numpy.min_scalar_type(texts.vocabulary - 1)
    stored, end = file.create_dataset(f"{name}/tokens", (int(chosen.sum()), texts.shape[1]), kind), 0
    for some in ranges(texts):
        block = numpy.asarray(texts[some])[chosen[some]]
        stored[end:end + len(block)] = block
        end += len(block)


def described(count, shape):
    return f"{count} texts of {next(iter(shape))} tokens"
