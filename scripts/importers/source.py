"""What a reader of a format returns, and what readers have in common."""
import dataclasses
import stat


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


def existing(path):
    """The path of a regular file, because others may have no end. Raises Refused."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not regular:
        raise Refused(f"{path}: not a regular file")
    return path
