#!/usr/bin/python3
"""Generates JPEG images with the size and statistics of photographs, and a data file of them.

  jpeg_set.py FOLDER COUNT

Writes FOLDER/images/CLASS/NUMBER.jpg, for torchvision's ImageFolder, and FOLDER/data.h5 with the same files in the same
order. An image is noise whose amplitude falls with the frequency, as in natural scenes, more for colours than for
brightness, of 500x375 or 375x500 pixels, compressed to about 110 KB: ImageNet's averages.
"""
import io
import pathlib
import sys

import h5py
import numpy as np
from PIL import Image

CLASSES = 10
SIZES = [(375, 500), (375, 500), (375, 500), (500, 375)]  # height and width
SLOPES = (1.1, 1.6, 1.6)  # of amplitude over frequency: brightness, and two colours
CONTRASTS = (58, 14, 14)
QUALITY = 92


def plane(random, height, width, slope, contrast):
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    spectrum = np.exp(2j * np.pi * random.random(frequency.shape)) / frequency ** slope
    values = np.fft.irfft2(spectrum, (height, width))
    return 128 + contrast * values / values.std()


def jpeg(number):
    random = np.random.default_rng(number)
    height, width = SIZES[number % len(SIZES)]
    planes = [plane(random, height, width, slope, contrast) for slope, contrast in zip(SLOPES, CONTRASTS)]
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "YCbCr").save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def main():
    folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    files, labels = [], []
    for label in range(CLASSES):
        place = folder / "images" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(label * count // CLASSES, (label + 1) * count // CLASSES):
            files.append(jpeg(number))
            labels.append(label)
            (place / f"{number:06}.jpg").write_bytes(files[-1])
    with h5py.File(folder / "data.h5", "w") as data:
        data.attrs["classes"] = [f"class{label}" for label in range(CLASSES)]
        data.attrs["mean"] = np.float32([0.485, 0.456, 0.406])
        data.attrs["deviation"] = np.float32([0.229, 0.224, 0.225])
        for split in ("train", "test"):
            data[f"{split}/labels"] = np.int32(labels)
            data[f"{split}/offsets"] = np.cumsum([0] + [len(file) for file in files], dtype=np.uint64)
            data[f"{split}/bytes"] = np.frombuffer(b"".join(files), np.uint8)
    print(f"{count} images, {sum(map(len, files)) / count / 1000:.0f} KB on average")


if __name__ == "__main__":
    main()
