"""Adds the checksums of src/data/FORMAT.md to a data file."""
import struct

from importers.source import Refused

BLOCK, LARGE = 1 << 14, 1 << 20
MARK = b"\x89annulus xxh3\r\n\0"


def large_arrays(file):
    """The places of large arrays in an open file of h5py, whose blocks are checked when they are read."""
    places = [(array.id.get_offset(), array.id.get_storage_size()) for split in file.values() for array in split.values()]
    return sorted((begin, begin + size) for begin, size in places if size >= LARGE)


def add_checksums(path, arrays):
    import xxhash  # which is not needed to look for checksums
    with open(path, "r+b") as file:
        size, hashes = 0, []
        while block := file.read(BLOCK):
            size += len(block)
            hashes.append(xxhash.xxh3_64_intdigest(block))
        ranges = b"".join(struct.pack("<2Q", *place) for place in arrays)

        def footer(own_hash):
            return struct.pack("<4Q16s", size, BLOCK, len(arrays), own_hash, MARK)
        file.write(struct.pack(f"<{len(hashes)}Q", *hashes) + ranges
                   + footer(xxhash.xxh3_64_intdigest(footer(0), xxhash.xxh3_64_intdigest(ranges))))


def has_checksums(path):
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - len(MARK)))
        return file.read() == MARK


def expect_replaceable(path, overwrite):
    if path.exists() and not overwrite and not (path.is_file() and (path.stat().st_size == 0 or has_checksums(path))):
        raise Refused(f"{path}: exists, and is no data file that an import has written; add --overwrite to replace it")
