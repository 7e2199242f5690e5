#!/usr/bin/python3
"""Checks the one-way dependencies between the modules (folders; see README.md, "Architecture") by reading the includes.

  include_rule.py [ROOT]        prints every violation; exit status 1 if there is one
  include_rule.py --self-test   shows that each kind of violation is found
"""
import graphlib
import pathlib
import re
import sys
import tempfile

import source_check

# The modules that a module may include, in addition to itself.
KERNELS = {"kernels", "kernels/base", "kernels/operations"}
CPU = KERNELS | {"kernels/cpu/loops", "kernels/cpu/plan"}
CPU_ROOMS = ("convolution", "dense", "norm", "elementwise", "reduction", "pool", "attention", "shaping")  # of operations
CUDA = KERNELS | {"kernels/cuda/runtime", "kernels/cuda/vendor"}
CUDA_OPS = CUDA | {"kernels/cuda/ops/loops", "kernels/cuda/ops/plan"}
CUDA_ROOMS = ("convolution", "product", "weights", "dense", "elementwise", "reduction", "pool", "loss", "attention", "shaping", "update")
COMM = {"collectives", "collectives/world"}
MODELS = {"models/graph", "models/zoo", "models/rewrites", "models/parameters", "models/memory", "models/network"}
MODULES = {
    "kernels/base": set(),
    "kernels/operations": {"kernels/base"},
    "kernels": {"kernels/base", "kernels/operations"},
    "kernels/cpu/loops": KERNELS,
    "kernels/cpu/plan": KERNELS | {"kernels/cpu/loops"},
    **{f"kernels/cpu/{room}": CPU for room in CPU_ROOMS},
    "kernels/cpu/loss": CPU | {"kernels/cpu/dense"},
    "kernels/cpu": CPU | {f"kernels/cpu/{room}" for room in CPU_ROOMS},
    "kernels/cuda/runtime": KERNELS,
    "kernels/cuda/vendor": KERNELS | {"kernels/cuda/runtime"},
    "kernels/cuda/ops/loops": CUDA,
    "kernels/cuda/ops/plan": CUDA | {"kernels/cuda/ops/loops"},
    **{f"kernels/cuda/ops/{room}": CUDA_OPS for room in CUDA_ROOMS},
    "kernels/cuda/ops/norm": CUDA_OPS | {"kernels/cuda/ops/pool"},  # for a max pool after batch norm
    "kernels/cuda": CUDA_OPS | {"kernels/cuda/ops/update"},
    "collectives/world": {"kernels/base"},
    "collectives": KERNELS | {"collectives/world"},
    "collectives/ring": {"kernels/base"} | COMM,
    "collectives/host": {"kernels/base", "collectives/ring"} | COMM,
    "collectives/library": {"kernels/base", "collectives/host"} | COMM,
    "collectives/gpu": KERNELS | COMM | {"kernels/cuda", "kernels/cuda/runtime", "collectives/ring", "collectives/host"},
    "models/graph": KERNELS,
    "models/zoo": KERNELS | {"models/graph"},
    "models/rewrites": KERNELS | {"models/graph", "models/zoo"},
    "models/parameters": KERNELS | {"models/graph"},
    "models/memory": KERNELS | {"models/graph"},
    "models/network": KERNELS | MODELS - {"models/network"},
    "src/io": {"kernels/base"},
    "src/job": MODELS | KERNELS | COMM | {"kernels/cuda", "src/io"},
    "src/data": {"kernels/base", "collectives/world", "src/io"},
    "src/text": {"kernels/base", "src/io"},
    "src/onnx": MODELS | KERNELS | {"src/io"},
    "src/import": {"kernels/base", "collectives/world", "src/io", "src/text", "src/job", "src/data"},
    "src/step": MODELS | KERNELS | COMM | {"kernels/cpu/loops", "kernels/cuda", "src/io", "src/job", "src/data"},
    "src/energy": KERNELS | {"kernels/cuda", "collectives/world", "src/io", "src/job"},
    "src/checkpoint": MODELS | KERNELS | COMM | {"src/io", "src/data", "src/step"},
    "src/metrics": KERNELS | {"src/io", "src/energy", "src/step"},
    "src/scaling": MODELS | KERNELS | {"collectives", "collectives/ring", "collectives/host",
                                       "src/io", "src/data", "src/step", "src/metrics"},
    "src/weights": {"kernels/base", "src/io"},
    "src/torch/annulus_torch": {"collectives"},  # only its C header
    "src/train": MODELS | KERNELS | COMM | {"src/io", "src/onnx", "src/job", "src/data", "src/energy", "src/step", "src/checkpoint", "src/metrics", "src/weights"},
    "src/apply": MODELS | KERNELS | COMM | {"kernels/cuda", "src/io", "src/onnx", "src/job", "src/data", "src/energy", "src/text", "src/import", "src/step",
                                   "src/checkpoint", "src/metrics", "src/weights", "src/train"},
    "src/bench": MODELS | KERNELS | COMM | {"kernels/cpu/loops", "src/io", "src/onnx", "src/job", "src/data", "src/energy", "src/step", "src/checkpoint",
                                   "src/metrics", "src/scaling", "src/train", "src/apply"},
    "src/cli": MODELS | {"kernels/base", "src/io", "src/onnx", "src/job", "src/data", "src/import", "src/step", "src/metrics",
                "src/scaling", "src/train", "src/apply", "src/bench"} | COMM,
    "src": {"kernels/base", "collectives/world", "src/io", "src/job", "src/cli"},
}
# Factories that may include the modules below their own.
ASSEMBLY = {"kernels/make_device.cpp": {"kernels/cpu", "kernels/cuda"},
            "collectives/make_all_reduce.cpp": {"collectives/host", "collectives/gpu"},
            "collectives/make_parameter_server.cpp": {"collectives/host"}}
FOLDERS = ("kernels", "collectives", "models", "src", "tests")  # tests/ may include everything

# Libraries that only certain files use. Vendor libraries stay behind the device interface; a .cpp above it may read
# a library's version, or, in collectives/, implement an algorithm with it.
VENDOR = re.compile(r"^(dnnl|oneapi/dnnl|cuda|cudnn|cublas|nccl|nv)", re.IGNORECASE)
HDF5 = re.compile(r"^(hdf5|H5)")

# The step is the same for all strategies: the parts of rounds are known to each other, to the factory and to the
# command line only.
ROUNDS = re.compile(r"^src/step/((round|local|async)_\w+|look_ahead)\.h$")
KNOWS_ROUNDS = re.compile(r"^src/(step/((round|local|async)_\w+|look_ahead|strategy|strategies)\.(h|cpp)|cli/.*)$")

JSON_PARSER = re.compile(r"json::(parse|accept|sax_parse|from_\w+)\(")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def complaint(path, quote, name):
    """Why the file at `path` (relative to the root) may not include `name`, or None."""
    folder, module = path.parts[0], path.parent.as_posix()
    target = pathlib.PurePosixPath(name)
    if ".." in target.parts:
        return "an include is written from the root, without .."
    if target.parts[0] in FOLDERS:
        if quote != '"':
            return "our own headers are included with quotes"
        if folder != "tests":
            if module not in MODULES:
                return f"{module}/ is not a module in tests/include_rule.py"
            allowed = {module} | MODULES[module] | ASSEMBLY.get(path.as_posix(), set())
            if target.parent.as_posix() not in allowed:
                return f"{module}/ may include only {', '.join(sorted(allowed))}"
        if folder != "tests" and ROUNDS.match(name) and not KNOWS_ROUNDS.match(path.as_posix()):
            return "only rounds, src/step/strategies.cpp and src/cli/ know the parts of rounds"
    elif quote == '"':
        return "an include of our own is written from the root: folder/file.h"
    if VENDOR.match(name):
        if folder == "models":
            return "models/ uses no vendor's library"
        # kernels/cpu/, kernels/cuda/ and the tests for GPUs; the emulator's headers are the vendor's
        inside = folder == "kernels" and len(path.parts) > 2 or path.parts[:2] == ("tests", "gpu")
        if path.suffix in (".h", ".cuh") and not inside:
            return "a public header passes no vendor's library on"
    # Tests create good and bad files with the library itself, not with the tested code.
    if HDF5.match(name) and folder != "tests" and not (module == "src/io" and path.stem == "hdf5"):
        return "only src/io/hdf5.* uses HDF5's C interface"
    return None


def check(root):
    """Every violation below `root`, and the number of includes."""
    breaks, seen = [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            relative = path.relative_to(root)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if JSON_PARSER.search(line) and folder == "src" and relative.as_posix() != "src/io/json.cpp":
                    breaks.append(f"{relative}:{number}: only src/io/json.cpp calls JSON's parser, which has no limit of depth")
                match = INCLUDE.match(line)
                if not match:
                    continue
                seen += 1
                why = complaint(relative, *match.groups())
                if why:
                    breaks.append(f"{relative}:{number}: {match[2]}: {why}")
    return breaks, seen


def self_test():
    graphlib.TopologicalSorter(MODULES).prepare()  # raises CycleError
    bad = [
        ("kernels/a.h", '#include "collectives/world/world.h"'),
        ("kernels/a.cpp", '#include "kernels/cpu/cpu_device.h"'),
        ("kernels/base/a.h", '#include "kernels/device.h"'),
        ("kernels/cpu/a.cpp", '#include "src/train/train.h"'),
        ("kernels/cuda/runtime/a.cpp", '#include "kernels/cuda/ops/loops/context.h"'),
        ("kernels/a.h", "#include <dnnl.hpp>"),
        ("collectives/a.cpp", '#include "models/network/network.h"'),
        ("collectives/ring/a.cpp", '#include "collectives/host/shared_memory_all_reduce.h"'),
        ("collectives/a.h", "#include <nccl.h>"),
        ("models/graph/a.h", '#include "collectives/world/world.h"'),
        ("models/graph/a.cpp", '  #  include "src/step/step.h"'),
        ("models/graph/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>"),
        ("src/io/a.h", "#include <dnnl.hpp>"),
        ("src/data/a.h", "#include <cuda_runtime.h>"),
        ("src/data/a.cpp", "#include <hdf5.h>"),
        ("src/data/dataset.h", "#include <H5public.h>"),
        ("src/data/a.cpp", '#include "src/step/step.h"'),
        ("src/a_new_module/a.cpp", '#include "src/io/hash.h"'),
        ("src/io/a.cpp", '#include "tests/mpi/helper.h"'),
        ("src/io/a.cpp", '#include "../kernels/base/error.h"'),
        ("src/io/a.cpp", '#include "run.h"'),
        ("src/step/synchronous_step.cpp", '#include "src/step/round_options.h"'),
        ("src/train/survival.cpp", '#include "src/step/async_step.h"'),
        ("tests/unit/a.cpp", "#include <kernels/base/error.h>"),
    ]
    good = [
        ("kernels/cpu/a.cpp", '#include "kernels/device.h"'),
        ("kernels/cpu/a.h", "#include <dnnl.hpp>"),
        ("kernels/make_device.cpp", '#include "kernels/cpu/cpu_device.h"'),
        ("collectives/a.cpp", '#include "kernels/base/clock.h"'),
        ("collectives/gpu/nccl.cpp", "#include <nccl.h>"),
        ("models/graph/a.h", "#include <vector>"),
        ("src/io/hdf5.h", "#include <hdf5.h>"),
        ("tests/unit/a.cpp", "#include <hdf5.h>"),
        ("src/step/a.cpp", '#include "models/network/network.h"'),
        ("tests/unit/a.cpp", '#include "src/train/train.h"'),
        ("src/step/strategies.cpp", '#include "src/step/local_step.h"'),
        ("src/step/local_step.h", '#include "src/step/round_step.h"'),
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
    print(f"self-test: {len(bad)} violations found, {len(good)} good lines accepted")


source_check.main(check, self_test, fewest=1)
