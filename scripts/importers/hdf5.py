"""HDF5 files of one image each, or of a whole data set."""
import random

import h5py
import numpy

from importers import npy
from importers.hand_over import png
from importers.source import ENDINGS, IMAGE_WORDS, LABEL_WORDS, TEST_NAMES, Batch, Refused, Sample, Samples, Source, files_in

FILES = 1000    # of a batch
LOOKED_AT = 20  # files, for the kind of labels
MOST_PARTS = 8  # files of a whole data set


class Bad(Exception):
    """Why a file is no sample."""


class Reader:
    """Reads samples in the same way from all files of a data set."""

    def __init__(self, source, options):
        self.source, self.options = source, options
        self.factors = set()  # of pixels that are no bytes
        self.by_name = None   # whether labels are names, if known

    def sample(self, path):
        try:
            with h5py.File(path, "r") as file:
                arrays = {}
                file.visititems(lambda name, item: arrays.update({name: item}) if isinstance(item, h5py.Dataset) else None)
                label = self.label(path, file, arrays)
                if label in (None, ""):
                    raise Bad("has no label")
                if self.by_name is not None and self.by_name != isinstance(label, str):
                    raise Bad(f"its label is {label}, but the first files have {'names' if self.by_name else 'numbers'}")
                return Sample(self.image(path, arrays), label)
        except Bad as error:
            return Sample(b"", None, str(error))
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # what h5py raises for damaged files
            return Sample(b"", None, f"cannot read as HDF5: {' '.join(str(error).split())}")

    def label(self, path, file, arrays):
        words = (self.options.label_key,) if self.options.label_key else LABEL_WORDS
        found = {name: array[()] for name, array in arrays.items()
                 if not {name, name.rpartition("/")[2], name.rpartition("/")[2].lower()}.isdisjoint(words)}
        found |= {f"attribute {name} of {item.name}": item.attrs[name] for item in (file, *arrays.values())
                  for name in item.attrs if name in words}
        if len(found) > 1 and self.options.label_key not in found:
            raise Bad(f"which is the label? {', '.join(found)}; name it with --label-key")
        if found:
            return class_of(found.get(self.options.label_key, next(iter(found.values()))))
        folders = path.relative_to(self.source).parts[:-1]
        if folders[:1] in (("train",), *((name,) for name in TEST_NAMES)):
            folders = folders[1:]
        return folders[-1] if folders and not self.options.label_key else None

    def image(self, path, arrays):
        wanted = self.options.image_key
        fitting = {name: array for name, array in arrays.items() if wanted in (None, name) and is_image(array)}
        named = [name for name in fitting if name.rpartition("/")[2].lower() in IMAGE_WORDS]
        if len(fitting) != 1 and len(named) != 1:
            raise Bad(f"{'which dataset has the image?' if fitting else 'no dataset has an image:'} "
                      + ", ".join(f"{name} ({describe(array)})" for name, array in arrays.items())
                      + ("; name it with --image-key" if fitting else ""))
        array = fitting[(named if len(named) == 1 else list(fitting))[0]]
        if array.ndim < 2:
            return numpy.asarray(array[()]).tobytes()
        try:
            pixels = npy.Pixels(array[()][None], path)
        except Refused as error:
            raise Bad(str(error).removeprefix(f"{path}: ")) from None
        if array.dtype != numpy.uint8 and array[()].any():
            self.factors.add(pixels.scale)
        if len(self.factors) > 1:
            raise Refused(f"{path}: has another range of values than the files before: 0 to 1, or 0 to 255")
        image = pixels[0:1][0]
        image = image if image.ndim == 3 else image[..., None]
        if image.shape[2] not in (1, 3):
            raise Bad(f"an image of {describe(array)}; supported are 1 or 3 channels")
        return png(image)


def describe(array):
    return f"{'x'.join(map(str, array.shape or ())) or 'scalar'} {array.dtype}"


def is_image(array):
    """Pixels, or the bytes of a file: uint8, N, or a scalar of bytes that are no text."""
    if array.dtype.kind in "uif" and array.ndim in (2, 3):
        return array.size > 0
    return array.dtype == numpy.uint8 and array.ndim == 1 and array.size > 16 or array.dtype.kind == "V" and array.ndim == 0


def class_of(value):
    """A label as a number or a name. Raises Bad."""
    value = numpy.asarray(value)
    if value.size != 1:
        raise Bad(f"its label has {value.size} values; one class for each image is expected")
    value = value.reshape(-1)[0]
    if isinstance(value, (bytes, str)):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(value, numpy.generic) or value.dtype.kind not in "biuf" or not float(value).is_integer():
        raise Bad(f"its label is {value}, not a class")
    return int(value)


def splits_of(source, files):
    """As `annulus import --from folder`: train/ and val/, validation/ or test/, or else all are training images."""
    if not (source / "train").is_dir():
        return {"train": files}
    test = next((name for name in TEST_NAMES if (source / name).is_dir()), None)
    own = {split: [path for path in files if path.relative_to(source).parts[0] == folder]
           for split, folder in (("train", "train"), ("test", test)) if folder}
    if not own["train"]:
        raise Refused(f"{source / 'train'}: has no files {' or '.join('*' + ending for ending in ENDINGS['hdf5'])}")
    if others := sorted(set(files) - {path for found in own.values() for path in found}):
        print(f"{source}: {len(others)} files are not read, such as {others[0].relative_to(source)}")
    return {split: found for split, found in own.items() if found}


def arrays_of(source, path):
    """The arrays of a file, see npy.splits_of(). Raises Refused."""
    try:
        file, names = h5py.File(path, "r"), []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    except (OSError, RuntimeError) as error:
        raise Refused(f"{path}: {' '.join(str(error).split())}") from None
    return {f"{npy.name_in(source, path)}/{name}": (f"{path}: {name}", lambda name=name: file[name]) for name in names}


def whole(source, files, options):
    """The splits of a data set in a file, or in a file for each split or array; None if each file is a sample."""
    if len(files) > MOST_PARTS:
        return None
    arrays = {name: array for path in files for name, array in arrays_of(source, path).items()}

    def are_many(name):
        array = arrays[name][1]()
        return array.ndim == 4 or array.ndim > 0 and len(array) > 1 and npy.role_of(name, options)[1] == "labels"
    if len(files) > 1 and not any(map(are_many, arrays)):
        return None
    return Source(npy.splits_of(source, arrays, options))


def read(source, options):
    files = files_in(source, "hdf5")
    if data_set := whole(source, files, options):
        return data_set
    splits = splits_of(source, files)
    random.Random(2).shuffle(splits["train"])  # they may be sorted by class
    reader = Reader(source, options)
    first = [reader.sample(path) for path in splits["train"][:LOOKED_AT]]
    labels = [sample.label for sample in first if not sample.problem]
    if not labels:
        raise Refused(f"{splits['train'][0]}: {first[0].problem}; nor are the next files samples")
    reader.by_name = isinstance(labels[0], str)

    def batch(number, paths):
        return Batch(f"{number:05}", paths, lambda: map(reader.sample, paths), lambda i: str(paths[i]))
    return Samples({split: [batch(begin, own[begin:begin + FILES]) for begin in range(0, len(own), FILES)]
                    for split, own in splits.items()}, reader.by_name, None, (options.image_key, options.label_key))
