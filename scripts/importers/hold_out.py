"""The validation samples of --hold-out: those that `annulus import` chooses (src/import/hold_out.cpp)."""
import math

import numpy

SEED, ROUNDS = 2, 4


def mix(key):
    """SplitMix64's finalizer, for arrays of uint64."""
    key = key + numpy.uint64(0x9e3779b97f4a7c15)
    key = (key ^ (key >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
    key = (key ^ (key >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
    return key ^ (key >> numpy.uint64(31))


def order(size, label):
    """A permutation of a class's samples: EpochOrder(size, SEED, label) of src/data/sampler.cpp."""
    bits = numpy.uint64(((size - 1).bit_length() + 1) // 2)
    mask = (numpy.uint64(1) << bits) - numpy.uint64(1)
    key = mix(mix(numpy.uint64([SEED])) ^ numpy.uint64(label))
    values, out = numpy.arange(size, dtype=numpy.uint64), numpy.ones(size, bool)
    while out.any():
        left, right = values[out] >> bits, values[out] & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (mix(mix(key + numpy.uint64(number)) ^ right) & mask)
        values[out] = left << bits | right
        out = values >= size
    return values.astype(numpy.int64)


def held_out(labels, share):
    """A mask of the samples to hold out, of each class round(share x its samples), but never all."""
    mask = numpy.zeros(len(labels), bool)
    for label in numpy.unique(labels):
        samples = numpy.flatnonzero(labels == label)
        count = min(math.floor(share * len(samples) + 0.5), len(samples) - 1)
        mask[samples[order(len(samples), int(label))[:count]]] = True
    return mask
