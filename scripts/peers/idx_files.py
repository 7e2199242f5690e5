"""Reads Fashion-MNIST's IDX files, plain or compressed by gzip."""
import gzip

import numpy


def read(folder, name, offset):
    file = folder / name
    data = file.read_bytes() if file.exists() else gzip.open(f"{file}.gz").read()
    return numpy.frombuffer(data, numpy.uint8, offset=offset).copy()


def images_and_labels(folder, split):
    """Returns the images (n x 28 x 28) and labels of the split "train" or "t10k"."""
    return (read(folder, f"{split}-images-idx3-ubyte", 16).reshape(-1, 28, 28),
            read(folder, f"{split}-labels-idx1-ubyte", 8))
