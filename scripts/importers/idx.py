"""MNIST's format (http://yann.lecun.com/exdb/mnist): two zero bytes, the type of the elements, the number of
dimensions, these as big-endian 32-bit words, and the elements row by row."""
import gzip
import zlib

import numpy

from importers.source import Refused, Source, Split, existing

UNSIGNED_BYTE = 8


def read_bytes(plain):
    path = plain if plain.exists() else plain.with_name(plain.name + ".gz")
    if not path.exists():
        raise Refused(f"{plain}: missing, with and without .gz; the source must be a folder with the four IDX files")
    content = existing(path).read_bytes()
    try:
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, OSError, zlib.error) as error:
        raise Refused(f"{path}: damaged: {error}; fetch the file again") from None


def read_array(path):
    content = read_bytes(path)
    begin = 4 + 4 * content[3] if len(content) > 3 else 4
    if len(content) < begin:
        raise Refused(f"{path}: ends within its header; fetch the file again")
    if content[:2] != b"\0\0" or content[3] == 0:
        raise Refused(f"{path}: not an IDX file")
    if content[2] != UNSIGNED_BYTE:
        raise Refused(f"{path}: elements of type {content[2]:#04x}; only unsigned bytes (0x08) are read")
    shape = [int(extent) for extent in numpy.frombuffer(content[4:begin], ">u4")]
    elements = numpy.frombuffer(content, numpy.uint8, offset=begin)
    missing = numpy.prod(shape, dtype=object) - len(elements)
    if missing != 0:
        raise Refused(f"{path}: {'ends within its elements' if missing > 0 else 'has bytes after its last element'}; "
                      "fetch the file again")
    return elements.reshape(shape)


def read(folder, _):
    splits = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        labels = folder / f"{prefix}-labels-idx1-ubyte"
        splits[split] = Split(read_array(folder / f"{prefix}-images-idx3-ubyte"), read_array(labels), str(labels))
    return Source(splits)
