"""The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html): a record is one label,
or a coarse and a fine one, and the pixels, plane after plane."""
import numpy

from importers.source import Refused, Source, Split, existing

SIDE, CHANNELS = 32, 3


def read_names(path, wanted):
    names = [line for line in existing(path).read_text().splitlines() if line]
    if len(names) != wanted:
        raise Refused(f"{path}: has {len(names)} names instead of {wanted}")
    return names


def read_records(paths, labels):
    """The split of some files, whose records begin with that many labels."""
    size = labels + CHANNELS * SIDE * SIDE
    for path in paths:
        count = existing(path).stat().st_size
        if count == 0 or count % size:
            raise Refused(f"{path}: {count} bytes, which is not a multiple of the record size {size}; fetch the file again")
    records = numpy.concatenate([numpy.fromfile(path, numpy.uint8).reshape(-1, size) for path in paths])
    planes = records[:, labels:].reshape(-1, CHANNELS, SIDE, SIDE)
    return Split(planes.transpose(0, 2, 3, 1), records[:, labels - 1], ", ".join(map(str, paths)))


def read(folder, _):
    ten, hundred = folder / "batches.meta.txt", folder / "fine_label_names.txt"
    if ten.exists():
        batches = sorted(folder.glob("data_batch_*.bin"))
        if not batches:
            raise Refused(f"{folder}: has no data_batch_*.bin")
        return Source({"train": read_records(batches, 1), "test": read_records([folder / "test_batch.bin"], 1)},
                      read_names(ten, 10))
    if hundred.exists():
        return Source({"train": read_records([folder / "train.bin"], 2), "test": read_records([folder / "test.bin"], 2)},
                      read_names(hundred, 100))
    raise Refused(f"{folder}: has neither {ten.name} (CIFAR-10) nor {hundred.name} (CIFAR-100); the source must be the "
                  "folder of the binary version")
