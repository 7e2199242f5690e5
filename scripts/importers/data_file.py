"""Checks a source, and writes it as a data file (src/data/FORMAT.md), as `annulus import` does with its own formats."""
import math
import os
import shutil

import h5py
import numpy

from importers import texts
from importers.checksums import add_checksums, expect_replaceable, large_arrays
from importers.hand_over import png
from importers.hold_out import held_out
from importers.source import Batch, Refused, Sample, Samples, ranges

MOST_BYTES, MOST_CLASSES = 1 << 28, 1 << 20  # of an image; larger labels are errors
FEW_CLASSES = 256                           # labels below are accepted for any number of images
ONE, SEVERAL, VALUES = "class", "several classes", "values"


def shape_text(shape):
    return "x".join(map(str, shape))


def image_shape(split):
    """Height, width and channels. Raises Refused."""
    shape, name = split.images.shape, split.images_place
    if split.images.dtype != numpy.uint8:
        raise Refused(f"{name}: images must be uint8")
    if len(shape) not in (3, 4):
        raise Refused(f"{name}: {len(shape)} dimensions; images have 3, or 4 with channels"
                      + (", and texts of tokens are arrays called tokens and labels" if len(shape) == 2 else ""))
    if shape[0] == 0:
        raise Refused(f"{name}: has no images ({shape_text(shape)})")
    height, width, channels = *shape[1:3], shape[3] if len(shape) == 4 else 1
    if not 0 < height * width * channels <= MOST_BYTES:
        raise Refused(f"{name}: images of {height}x{width}x{channels} bytes; supported are 1 to {MOST_BYTES} bytes")
    if channels not in (1, 3):
        raise Refused(f"{name}: images of {channels} channels; supported are 1 or 3")
    labels = split.labels.shape
    if len(labels) not in (1, 2) or labels[0] != shape[0] or labels[-1] == 0:
        raise Refused(f"{split.place}: labels of shape {shape_text(labels)} for {shape[0]} images")
    return height, width, channels


def common_shape(source):
    shapes = {name: image_shape(split) for name, split in source.splits.items()}
    if len(set(shapes.values())) > 1:
        raise Refused(f"{source.splits['test'].images_place}: image size differs from the training images")
    return shapes["train"]


def label_kind(split):
    labels = split.labels
    if labels.dtype.kind not in "biuf" or labels.dtype in (numpy.float16, numpy.longdouble):
        raise Refused(f"{split.place}: elements of type '{labels.dtype.str}'; only integers, bool, float32 and float64 are supported")
    if labels.dtype.kind == "f":
        return VALUES
    return SEVERAL if labels.ndim == 2 else ONE


def is_one_hot(labels):
    labels = numpy.asarray(labels)
    return labels.ndim == 2 and labels.shape[1] > 1 and bool(
        ((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())


def first(wrong):
    """The index of the first true element, or None."""
    places = numpy.argwhere(wrong)
    return tuple(int(i) for i in places[0]) if len(places) else None


def checked_labels(split, kind, most):
    """The labels as stored. `most`: the number of classes, if it is known. Raises Refused for the first bad one."""
    if kind == VALUES:
        labels = numpy.asarray(split.labels, numpy.float32).reshape(len(split.labels), -1)
        if bad := first(~numpy.isfinite(labels)):
            raise Refused(f"{split.place}: sample {bad[0]}: value {bad[1]} is {labels[bad]}")
        return labels
    labels = numpy.asarray(split.labels)
    if kind == SEVERAL:
        if bad := first((labels != 0) & (labels != 1)):
            raise Refused(f"{split.place}: sample {bad[0]}: has {labels[bad]} for class {bad[1]} in its label, which must "
                          "be 0 or 1")
        return labels.astype(numpy.uint8)
    if bad := first((labels < 0) | (labels >= (most or MOST_CLASSES))):
        raise Refused(f"{split.place}: sample {bad[0]}: has label {labels[bad]}, which "
                      + (f"none of the {most} classes has" if most else f"must be at least 0 and below {MOST_CLASSES}"))
    return labels.astype(numpy.int32)


def known_kind(source):
    """The kind of all labels, and the number of numbers in each; one-hot labels become one class each."""
    if all(is_one_hot(split.labels) for split in source.splits.values()):
        for split in source.splits.values():
            split.labels = numpy.asarray(split.labels).argmax(1)
        print("the labels are one-hot: read as one class for each image")
    kinds = {(label_kind(split), *split.labels.shape[1:]): split for split in source.splits.values()}
    if len(kinds) > 1:
        raise Refused(f"{list(kinds.values())[1].place}: labels differ from the training labels in type or shape")
    kind, *width = next(iter(kinds))
    return kind, (width[0] if width else 1)


def class_names(source, names, kind, width, labels):
    if kind == ONE:
        images, largest = sum(map(len, labels.values())), max(int(own.max()) for own in labels.values())
        if not (names or source.classes) and largest >= max(images, FEW_CLASSES):
            raise Refused(f"{source.splits['train'].place}: label {largest}, but there are only {images} images in total; "
                          "correct it, or name all classes with --classes")
        return names or source.classes or [str(label) for label in range(largest + 1)]
    if names and len(names) != width:
        raise Refused(f"--classes: {len(names)} names for {width} classes")
    return names or source.classes or [str(number) for number in range(width)]


def blocks(images):
    """Yields the images as N x height x width x channels, some at a time."""
    for some in ranges(images):
        block = numpy.asarray(images[some])
        yield block.reshape(*block.shape[:3], -1)


def samples_of(source):
    """The images of arrays as samples. Raises Refused if labels are not one class each."""
    common_shape(source)
    if known_kind(source)[0] != ONE:
        raise Refused("--size, --channels, --shards, --chunk, --on-bad-sample, --ranks: require labels that are one class for each image")

    def batch(name, split):
        def read():
            images = (one for block in blocks(split.images) for one in block)
            yield from (Sample(png(image), int(label)) for image, label in zip(images, split.labels))
        return Batch(name, [], read, lambda number: f"{split.place}: sample {number}")
    return Samples({name: [batch(name, split)] for name, split in source.splits.items()}, classes=source.classes)


def mean_and_deviation(images):
    """The mean and std of each channel, of pixels scaled to 0..1; the sums are exact."""
    sums = squares = count = 0
    for block in blocks(images):
        pixels = block.reshape(-1, block.shape[-1]).astype(numpy.uint64)
        sums, squares, count = sums + pixels.sum(0), squares + (pixels * pixels).sum(0), count + len(pixels)
    mean, square = (total.astype(numpy.longdouble) / count for total in (sums, squares))
    variance = square - mean * mean
    if (variance < 1e-7).any():
        raise Refused("all pixels of the training images have the same value; set the divisor with --std")
    return (mean / 255).astype(numpy.float32), (numpy.sqrt(variance) / 255).astype(numpy.float32)


class Images:
    """What a data file has of images; texts.py has the same of texts."""

    @staticmethod
    def common_shape(source):
        return common_shape(source)

    @staticmethod
    def attributes(source, options, shape):
        given = [options.mean, options.std]
        for option, values in zip(("--mean", "--std"), given):
            if values and len(values) != shape[2]:
                raise Refused(f"{option}: {len(values)} values for {shape[2]} channels")
        found = [None, None] if all(given) else mean_and_deviation(source.splits["train"].images)
        return {name: numpy.float32(own) if own else computed for name, own, computed in zip(("mean", "deviation"), given, found)}

    @staticmethod
    def write(file, name, images, chosen):
        write_images(file, name, images, chosen)

    @staticmethod
    def described(count, shape):
        return f"{count} images of {shape[0]}x{shape[1]}"


def write_images(file, name, images, chosen):
    """Writes the chosen images, a mask."""
    shape = images.shape if images.ndim == 4 else (*images.shape, 1)
    stored, end = file.create_dataset(f"{name}/images", (int(chosen.sum()), *shape[1:]), numpy.uint8), 0
    for some, block in zip(ranges(images), blocks(images)):
        block = block[chosen[some]]
        stored[end:end + len(block)] = block
        end += len(block)


def split_shares(kind, labels, share):
    """Name of each split of the file: (name in the source, mask of its samples)."""
    shares = {name: (name, numpy.ones(len(own), bool)) for name, own in labels.items()}
    if share:
        held = held_out(labels["train"] if kind == ONE else numpy.zeros(len(labels["train"]), int), share)
        if not held.any():
            raise Refused(f"--hold-out {share}: no class has enough images for it; give a larger share")
        shares = {"train": ("train", ~held), "validation": ("train", held), **{n: s for n, s in shares.items() if n != "train"}}
    return shares


def expect_room(path, source):
    """Raises Refused if the images do not fit on the disk, because h5py then crashes."""
    size = sum(math.prod(split.images.shape) for split in source.splits.values())
    if size > (free := shutil.disk_usage(path.parent).free):
        raise Refused(f"{path}: requires {size / 1e6:.0f} MB, but the disk has only {free / 1e6:.0f} MB free")


def replacement(path):
    """A line for the user if a data file will be replaced, which may have taken hours to make."""
    if not path.exists() or not path.stat().st_size:
        return []
    try:
        with h5py.File(path) as file:
            count = sum(len(split["labels"]) for split in file.values() if "labels" in split)
    except OSError:  # no HDF5 file
        count = 0
    return [f"replaces {path}" + f" ({count} images)" * (count > 0)]


def write(path, source, options):
    """Writes a source under another name until it is complete. Returns lines for the user. Raises Refused."""
    expect_replaceable(path, options.overwrite)
    before = replacement(path)
    content = texts if isinstance(source.splits["train"].images, texts.Tokens) else Images
    shape = content.common_shape(source)
    kind, width = known_kind(source)
    most = len(options.classes or source.classes or [])
    labels = {name: checked_labels(split, kind, most) for name, split in source.splits.items()}
    names = class_names(source, options.classes, kind, width, labels)
    attributes = content.attributes(source, options, shape)
    shares = split_shares(kind, labels, options.hold_out)
    expect_room(path, source)
    new = path.with_name(path.name + ".new")
    try:
        with h5py.File(new, "w") as file:
            file.attrs["values" if kind == VALUES else "classes"] = names
            file.attrs.update(attributes)
            for name, (of, chosen) in shares.items():
                file.create_dataset(f"{name}/labels", data=labels[of][chosen])
                content.write(file, name, source.splits[of].images, chosen)
            file.flush()
            arrays = large_arrays(file)
        add_checksums(new, arrays)
        with open(new, "rb+") as file:
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    counted = {ONE: "classes", SEVERAL: "classes, any number for each image", VALUES: f"value{'s' * (len(names) > 1)} for each image"}[kind]
    held = f"; {int(shares['validation'][1].sum())} of them held out for validation" if options.hold_out else ""
    return before + [f"{path}: {name}: {content.described(len(own), shape)}, {len(names)} {counted}{held * (name == 'train')}"
            for name, own in labels.items()]
