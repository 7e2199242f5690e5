#!/usr/bin/python3
"""Holds the one-way dependencies between the folders (README.md, "Architecture") by reading the includes.

  include_rule.py [ROOT]        prints every line that breaks the rule; exit status 1 where there is one
  include_rule.py --self-test   shows that each kind of break is seen
"""
import pathlib
import re
import sys
import tempfile

# Which of our folders a folder may include from.
ALLOWED = {
    "kernels": {"kernels"},
    "collectives": {"kernels", "collectives"},
    "models": {"kernels", "models"},
    "src": {"kernels", "collectives", "models", "src"},
    "tests": {"kernels", "collectives", "models", "src", "tests"},
}
# Which libraries only certain files know. The vendors' stay below the device's seam; a .cpp above it may ask one for
# its version, or, in collectives/, be an algorithm of a vendor's.
VENDOR = re.compile(r"^(dnnl|oneapi/dnnl|cuda|cudnn|cublas|nccl|nv)", re.IGNORECASE)
TESTS_OF_VENDORS = {("tests", "cuda_emulation"), ("tests", "cuda")}
HDF5 = re.compile(r"^(hdf5|H5)")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def complaint(path, quote, name):
    """Why the file at `path` (relative to the root) may not include `name`, or None."""
    folder = path.parts[0]
    if ".." in pathlib.PurePosixPath(name).parts:
        return "an include is written from the root, without .."
    target = name.split("/")[0]
    if target in ALLOWED:
        if quote != '"':
            return "our own headers are included with quotes"
        if target not in ALLOWED[folder]:
            return f"{folder}/ may include only {', '.join(sorted(ALLOWED[folder]))}"
    elif quote == '"':
        return "an include of our own is written from the root: folder/file.h"
    if VENDOR.match(name):
        if folder == "models":
            return "models/ knows no vendor's library"
        # kernels/cpu/, kernels/cuda/ and its tests; the emulation's headers are the vendor's
        inside = folder == "kernels" and len(path.parts) > 2 or path.parts[:2] in TESTS_OF_VENDORS
        if path.suffix in (".h", ".cuh") and not inside:
            return "a public header passes no vendor's library on"
    # Tests make good and bad files with the library itself, not with the code that they test.
    if HDF5.match(name) and folder != "tests" and not (path.parent.as_posix() == "src/data" and path.stem == "hdf5"):
        return "only src/data/hdf5.* knows HDF5's C interface"
    return None


def check(root):
    """Every break of the rule below `root`, and how many includes were looked at."""
    breaks, seen = [], 0
    for folder in ALLOWED:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            relative = path.relative_to(root)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                seen += 1
                why = complaint(relative, *match.groups())
                if why:
                    breaks.append(f"{relative}:{number}: {match[2]}: {why}")
    return breaks, seen


def self_test():
    bad = [
        ("kernels/a.h", '#include "collectives/world.h"'),
        ("kernels/cpu/a.cpp", '#include "src/run.h"'),
        ("kernels/a.h", "#include <dnnl.hpp>"),
        ("collectives/a.cpp", '#include "models/network.h"'),
        ("collectives/a.h", "#include <nccl.h>"),
        ("models/a.h", '#include "collectives/world.h"'),
        ("models/a.cpp", '  #  include "src/trainer.h"'),
        ("models/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>"),
        ("src/a.h", "#include <dnnl.hpp>"),
        ("src/data/a.h", "#include <cuda_runtime.h>"),
        ("src/a.cpp", "#include <hdf5.h>"),
        ("src/data/dataset.h", "#include <H5public.h>"),
        ("src/a.cpp", '#include "tests/mpi/helper.h"'),
        ("src/a.cpp", '#include "../kernels/error.h"'),
        ("src/a.cpp", '#include "run.h"'),
        ("tests/unit/a.cpp", "#include <kernels/error.h>"),
    ]
    good = [
        ("kernels/cpu/a.cpp", '#include "kernels/device.h"'),
        ("kernels/cpu/a.h", "#include <dnnl.hpp>"),
        ("collectives/a.cpp", '#include "kernels/clock.h"'),
        ("collectives/nccl_all_reduce.cpp", "#include <nccl.h>"),
        ("models/a.h", "#include <vector>"),
        ("src/data/hdf5.h", "#include <hdf5.h>"),
        ("tests/unit/a.cpp", "#include <hdf5.h>"),
        ("src/a.cpp", '#include "models/network.h"'),
        ("tests/unit/a.cpp", '#include "src/run.h"'),
    ]
    for cases, wanted in ((bad, 1), (good, 0)):
        for file, line in cases:
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, file)
                path.parent.mkdir(parents=True)
                path.write_text(f"// a comment\n{line}\n")
                breaks, seen = check(pathlib.Path(folder))
                if (len(breaks), seen) != (wanted, 1):
                    sys.exit(f"self-test: {file}: {line}: {len(breaks)} breaks, {wanted} wanted")
    print(f"self-test: {len(bad)} breaks seen, {len(good)} good lines left alone")


if sys.argv[1:] == ["--self-test"]:
    self_test()
else:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    breaks, seen = check(root)
    print(*breaks, sep="\n", end="\n" if breaks else "")
    # No includes at all means the wrong folder, not a good tree.
    sys.exit(1 if breaks or seen == 0 else 0)
