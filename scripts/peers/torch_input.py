#!/usr/bin/python3
"""Images/s of PyTorch's DataLoader and torchvision on a folder of JPEG images, with ResNet-50's training augmentation.

  torch_input.py FOLDER [--workers 1] [--batch 64] [--seconds 5]

RandomResizedCrop(224), RandomHorizontalFlip, ToTensor and Normalize, as in PyTorch's own ImageNet example. Prints JSON.
"""
import argparse
import json
import resource
import time

import torch
import torchvision
from torchvision import transforms


def processor_seconds():
    """CPU seconds of this process and of ended workers."""
    return sum(usage.ru_utime + usage.ru_stime
               for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    prepared = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    loader = torch.utils.data.DataLoader(torchvision.datasets.ImageFolder(options.folder, prepared), options.batch,
                                         shuffle=True, num_workers=options.workers, drop_last=True,
                                         persistent_workers=options.workers > 0)

    def batches():
        while True:
            yield from loader

    stream = batches()
    for _ in range(2 * options.workers + 1):  # batches prepared while the workers started
        next(stream)
    images, begun, busy = 0, time.monotonic(), processor_seconds()
    while time.monotonic() < begun + options.seconds:
        images += len(next(stream)[0])
    seconds = time.monotonic() - begun
    row = {"version": torch.__version__, "images_per_second": images / seconds}
    if options.workers == 0:
        row["images_per_processor_second"] = images / (processor_seconds() - busy)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
