"""Arrays in NumPy's format."""
import numpy

from importers.source import Refused, Source, Split, existing, ranges

NAMES = {"train": (("train_images", "train_labels"), ("X_train", "y_train"), ("x_train", "y_train"), ("X", "y"), ("x", "y")),
         "test": (("test_images", "test_labels"), ("X_test", "y_test"), ("x_test", "y_test"))}


def read_array(path):
    try:
        return numpy.load(existing(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"{path}: no array of numpy's: {error}") from None


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


def splits_of(place, has, array_of):
    """The splits by the first names that there are. `array_of(name)`: an array and its place. Raises Refused."""
    splits = {}
    for split, names in NAMES.items():
        for images, labels in names:
            if not has(images):
                continue
            array, own = array_of(images)
            if array.dtype.kind in "uif" and array.ndim in (3, 4):
                array = Pixels(array, own)
            splits[split] = Split(array, *array_of(labels), own)
            break
    if "train" not in splits:
        raise Refused(f"{place}: has no arrays train_images and train_labels, X_train and y_train, or X and y")
    return splits


def read(folder, _):
    def path(name):
        return folder / f"{name}.npy"
    return Source(splits_of(folder, lambda name: path(name).exists(), lambda name: (read_array(path(name)), str(path(name)))))
