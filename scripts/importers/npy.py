"""Arrays in NumPy's formats, and what arrays are by their names."""
import functools
import pathlib
import re
import zipfile
import zlib

import numpy

from importers.source import IMAGE_WORDS, LABEL_WORDS, TEST_NAMES, Refused, Source, Split, existing, files_in, ranges
from importers.texts import Tokens

SPLIT_WORDS = {"train": ("train", "training"), "val": ("val", "valid"), "validation": ("validation",), "test": ("test", "testing")}
KIND_WORDS = {"labels": (*LABEL_WORDS, "targets"), "tokens": ("tokens", "ids"), "images": IMAGE_WORDS}  # image_labels are labels


def refusing(place, read):
    """What `read` returns. Raises Refused for what numpy raises."""
    try:
        return read()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Refused(f"{place}: no array of numpy's: {error}") from None


def load(path):
    """An array, or an archive of arrays."""
    return refusing(path, lambda: numpy.load(existing(path), mmap_mode="r", allow_pickle=False))


class Pixels:
    """Images as bytes, with channels last, which are made when a slice is read."""
    dtype = numpy.dtype(numpy.uint8)

    def __init__(self, images, place):
        self.images, self.place = images, place
        self.channels_first = images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3)
        shape = images.shape
        self.shape = (shape[0], *shape[2:], shape[1]) if self.channels_first else shape
        self.ndim = images.ndim
        self.scale = self.factor()

    def __len__(self):
        return len(self.images)

    def factor(self):
        """What makes values of 0 to 255 of the elements."""
        if self.images.dtype == self.dtype:
            return 1
        low, high, whole = 0.0, 0.0, True
        for some in ranges(self.images):
            block = numpy.asarray(self.images[some])
            low, high = min(low, float(block.min(initial=0))), max(high, float(block.max(initial=0)))
            whole = whole and bool((block == numpy.rint(block)).all())
            if not numpy.isfinite(block).all():
                raise Refused(f"{self.place}: has values that are not finite")
        if low >= 0 and high <= 1 and self.images.dtype.kind == "f":
            return 255
        if low >= 0 and high <= 255 and whole:
            return 1
        advice = ("x.round().astype('uint8'), if these are pixels" if low >= 0 and high <= 255 else
                  "(255 * x).round().astype('uint8') of x from 0 to 1, before it is normalized")
        raise Refused(f"{self.place}: values from {low:g} to {high:g}; images must be whole numbers from 0 to 255, or numbers from "
                      f"0 to 1: save {advice}")

    def __getitem__(self, index):
        block = numpy.asarray(self.images[index])
        if block.dtype != self.dtype:
            block = numpy.rint(block * self.scale).astype(self.dtype)
        return numpy.ascontiguousarray(numpy.moveaxis(block, 1, -1)) if self.channels_first else block


def words_of(name):
    """The words of a name such as X_train, train-images, or trainX."""
    return set(re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()))


def first_among(choices, parts):
    """The choice with a word in the last of the parts that has any; None if there is none."""
    return next((name for part in reversed(parts) for name, words in choices.items() if not words_of(part).isdisjoint(words)), None)


def role_of(name, options):
    """The split and the kind ("images", "tokens", "labels", or None) of an array, by a name such as train/X or X_train."""
    parts = name.split("/")
    split = first_among(SPLIT_WORDS, parts)
    for kind, key in (("labels", options.label_key), ("images", options.image_key)):
        if key in (name, parts[-1]):
            return split or "train", kind
    kind = first_among(KIND_WORDS, parts)
    return split or "train", None if {"labels": options.label_key, "images": options.image_key}.get(kind) else kind


def splits_of(place, arrays, options):
    """The splits of arrays. `arrays`: by name, where an array is, and a function that reads it. Raises Refused."""
    found = {}
    for name in arrays:
        found.setdefault(role_of(name, options), []).append(name)
    splits = {}
    content = "tokens" if ("train", "tokens") in found else "images"
    for split, own in (("train", "train"), ("test", next((name for name in TEST_NAMES if (name, content) in found), None))):
        if (own, content) not in found:
            continue
        (images, images_place), (labels, labels_place) = (
            only(place, own, kind, found.get((own, kind), []), arrays) for kind in (content, "labels"))
        if content == "tokens":
            images = Tokens(images, images_place)
        elif images.dtype.kind in "uif" and images.ndim in (3, 4):
            images = Pixels(images, images_place)
        if labels.dtype.kind in "biu" and labels.shape == (len(labels), *[1] * (labels.ndim - 1)):  # as Keras stores CIFAR's
            labels = numpy.asarray(labels).reshape(len(labels))
        splits[split] = Split(images, labels, labels_place, images_place)
    if "train" not in splits:
        raise Refused(f"{place}: has no training images, as train_images and train_labels, X_train and y_train, or X and y"
                      + (f", but {', '.join(arrays)}; name them with --image-key and --label-key" if arrays else ""))
    read = {split.images_place for split in splits.values()} | {split.place for split in splits.values()}
    if left := [name for name, (own, _) in arrays.items() if own not in read]:
        print(f"{place}: not read: {', '.join(left)}")
    return splits


def only(place, split, kind, names, arrays):
    """The only array for a split's images or labels, and where it is. Raises Refused."""
    advice = "give files with one" if kind == "tokens" else f"name them with --{kind[:-1]}-key"
    if len(names) != 1:
        raise Refused(f"{place}: " + (f"which are the {split} {kind}? {', '.join(names)}" if names else
                                      f"has no {split} {kind} among {', '.join(arrays)}") + f"; {advice}")
    own, read_own = arrays[names[0]]
    return read_own(), own


def name_in(source, path):
    """A file's name without its ending, with the folders below the source."""
    return (path.relative_to(source) if source.is_dir() else pathlib.Path(path.name)).with_suffix("").as_posix()


def arrays_of(source, path):
    """The arrays of a file, see splits_of()."""
    if path.suffix == ".npy":
        return {name_in(source, path): (str(path), lambda: load(path))}
    archive = load(path)
    if not isinstance(archive, numpy.lib.npyio.NpzFile):
        raise Refused(f"{path}: no archive of numpy's")
    return {f"{name_in(source, path)}/{name}": (place := f"{path}: {name}", functools.partial(
        refusing, place, functools.partial(archive.__getitem__, name))) for name in archive.files}


def read(source, options):
    arrays = {name: array for path in files_in(source, "npy") for name, array in arrays_of(source, path).items()}
    return Source(splits_of(source, arrays, options))
