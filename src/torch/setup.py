"""Builds the extension against the PyTorch that is installed. Annulus's collectives are those that are installed
(pkg-config), else those of this repository, which this builds."""
import os
import pathlib
import shlex
import shutil
import subprocess

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "build/libannulus_collectives.so.0"
BUILT = ROOT / "build/torch"  # nothing is written into the sources


def words_of(*command):
    found = subprocess.run(command, capture_output=True, text=True)
    return shlex.split(found.stdout) if found.returncode == 0 else None


def collectives():
    """Flags for the compiler and the linker, and whether the package needs a copy of the library."""
    flags = words_of("pkg-config", "--cflags", "annulus_collectives")
    if flags is not None:
        libraries = words_of("pkg-config", "--libs", "annulus_collectives")
        return flags, libraries + [f"-Wl,-rpath,{word[2:]}" for word in libraries if word.startswith("-L")], False
    subprocess.run([ROOT / "scripts/build", "build"], env={**os.environ, "TARGETS": "annulus_collectives"}, check=True)
    return [], [str(LIBRARY), "-Wl,-rpath,$ORIGIN"], True


class Build(BuildExtension):
    def run(self):
        super().run()
        if copied:
            shutil.copy(LIBRARY, pathlib.Path(self.build_lib, "annulus_torch"))


mpi_compile, mpi_link = words_of("mpicc", "--showme:compile"), words_of("mpicc", "--showme:link")
if mpi_compile is None:
    mpi_compile, mpi_link = words_of("pkg-config", "--cflags", "mpich"), words_of("pkg-config", "--libs", "mpich")
if mpi_compile is None:
    raise SystemExit("annulus-torch: no MPI found: install libopenmpi-dev (Debian), or load a module with mpicc")
compile_flags, link_flags, copied = collectives()
os.chdir(HERE)
BUILT.mkdir(parents=True, exist_ok=True)
# All in one, because PyTorch's headers take a minute to compile.
SOURCE = BUILT / "extension.cpp"
SOURCE.write_text("".join(f'#include "src/torch/annulus_torch/{path.name}"\n' for path in sorted(HERE.glob("annulus_torch/*.cpp"))))
setup(
    ext_modules=[CppExtension(
        "annulus_torch._C", [str(SOURCE)],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-fvisibility=hidden", "-DOMPI_SKIP_MPICXX", f"-I{ROOT}",
                            *mpi_compile, *compile_flags],
        extra_link_args=[*mpi_link, *link_flags])],
    options={"build": {"build_base": str(BUILT)}, "egg_info": {"egg_base": str(BUILT)}},
    cmdclass={"build_ext": Build})
