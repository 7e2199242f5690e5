"""Arrays in NumPy's format."""
import numpy

from importers.source import Refused, Source, Split, existing

DESCRIPTION = ("a folder with {train,test}_{images,labels}.npy: images uint8, N x height x width [x channels]; labels "
               "integers;\nfor several classes N x classes of 0 and 1, for regression float32 or float64, N [x values]")


def read_array(path):
    try:
        return numpy.load(existing(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"{path}: no array of numpy's: {error}") from None


def read(folder):
    splits = {}
    for split in ("train", "test"):
        images, labels = (folder / f"{split}_{part}.npy" for part in ("images", "labels"))
        if split == "train" or images.exists():
            splits[split] = Split(read_array(images), read_array(labels), str(labels))
    return Source(splits)
