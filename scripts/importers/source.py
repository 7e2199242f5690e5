"""What a reader of a format returns, and what readers have in common."""
import dataclasses
import math
import stat
import typing

# Of each format, the endings of its files' names; see src/import/source.cpp.
ENDINGS = {"idx": ("-ubyte", "-ubyte.gz"), "cifar": ("_batch.bin", "_batch_1.bin", "fine_label_names.txt"), "npy": (".npy", ".npz"),
           "parquet": (".parquet", ".arrow"), "hdf5": (".h5", ".hdf5")}
LABEL_WORDS = ("label", "labels", "class", "class_name", "category", "target", "y")  # see src/import/label_table.cpp
IMAGE_WORDS = ("image", "images", "img", "jpg", "png", "data", "pixels", "x")
TEST_NAMES = ("val", "validation", "test")  # as in src/import/split_folders.h


class Refused(Exception):
    """A source, or options, that cannot be used; the message names the file and the reason."""


@dataclasses.dataclass
class Split:
    """Images (uint8, N x height x width [x channels]) and labels: integers, N; 0 or 1, N x classes; or floats, N [x
    values]. Both are arrays of numpy, or slices of files that give arrays. Messages name `place` for labels, and
    `images_place`."""
    images: object
    labels: object
    place: str
    images_place: str = ""

    def __post_init__(self):
        self.images_place = self.images_place or self.place.replace("labels", "images")


@dataclasses.dataclass
class Source:
    splits: dict          # "train", and "test" if there is one
    classes: list = None  # names by label, if the source has them


class Sample(typing.NamedTuple):
    image: bytes           # encoded; empty if there is none
    label: object          # a whole number, a class's name, or None
    problem: str = ""      # why the sample is unusable


@dataclasses.dataclass
class Batch:
    """Samples of a file, or of several, in order. `place(i)` names sample i in messages."""
    name: str              # unique within the split
    files: list            # a change of them means other samples
    read: typing.Callable  # () -> samples
    place: typing.Callable


@dataclasses.dataclass
class Samples:
    """Encoded images, which `annulus import` writes to the data file."""
    splits: dict           # "train", and "test" if there is one: lists of Batch
    by_name: bool = False  # labels are classes' names
    classes: list = None   # names by label, if the source has them
    columns: tuple = ()    # what is read of the files; a change means other samples


def visible_files(folder, above=()):
    """Yields what a folder and its subfolders have, except hidden files, following links. Raises Refused for a link cycle."""
    real = folder.resolve()
    if real in above:
        raise Refused(f"{folder}: a link to a folder that it lies in")
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from visible_files(path, (*above, real))
        else:
            yield path


def files_in(source, form):
    """A format's files in a folder, sorted, or the source itself. Raises Refused if there are none, or for a dangling link."""
    found = [source] if source.is_file() else sorted(
        existing(path) for path in visible_files(source) if path.name.endswith(ENDINGS[form]))
    if not found:
        raise Refused(f"{source}: has no files {' or '.join('*' + ending for ending in ENDINGS[form])}")
    return found


def ranges(images):
    """Yields slices of images to look at together: 8 MiB, or one image."""
    step = max(1, (8 << 20) // max(1, math.prod(images.shape[1:])))
    return (slice(begin, begin + step) for begin in range(0, len(images), step))


def existing(path):
    """The path of a regular file, because others may have no end. Raises Refused."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not regular:
        raise Refused(f"{path}: not a regular file")
    return path
