"""Hands images to `annulus import`, as archives of PNG files, for the options that only it has."""
import io
import pathlib
import shutil
import struct
import subprocess
import tarfile
import zlib

from importers.data_file import ONE, blocks, common_shape, known_kind
from importers.source import Refused


def png(image):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, channels = image.shape
    header = struct.pack(">2I5B", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def write_archive(path, split):
    with tarfile.open(path, "w") as archive:
        for number, (image, label) in enumerate(zip((one for block in blocks(split.images) for one in block), split.labels)):
            for ending, content in (("png", png(image)), ("cls", str(int(label)).encode())):
                member = tarfile.TarInfo(f"{number:09}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def hand_over(program, path, source, options, further):
    """Returns the exit status of `annulus import` with the options `further`. Raises Refused."""
    height, width, channels = common_shape(source)
    if known_kind(source)[0] != ONE:
        raise Refused("--size, --shards, --chunk, --on-bad-sample: require labels that are one class for each image")
    # The same name each time, so that a rerun continues, or starts over, where an interrupted import has left parts.
    name = path.parent / f".{path.name}.annulus-images"
    shutil.rmtree(name, ignore_errors=True)
    try:
        folder = pathlib.Path(name, "archives")
        folder.mkdir(parents=True)
        for split, of in source.splits.items():
            write_archive(folder / f"{split}.tar", of)
        names = pathlib.Path(name, "classes.txt")
        if classes := options.classes or source.classes:
            names.write_text("".join(f"{line}\n" for line in classes))
            further += ["--classes-from", names]
        for option, values in (("--mean", options.mean), ("--std", options.std)):
            further += [option, ",".join(map(str, values))] if values else []
        return subprocess.run([program, "import", path, folder, "--from", "tar", "--store", "pixels", "--channels", str(channels),
                               "--size", options.size or f"{height}x{width}", "--hold-out", str(options.hold_out),
                               *(["--overwrite"] if options.overwrite else []), *further], check=False).returncode
    finally:
        shutil.rmtree(name, ignore_errors=True)
