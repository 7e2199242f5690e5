"""A recipe for Spack 1.0 and later, which builds the repository that the recipe lies in:

  spack repo add scripts/formats/spack/spack_repo/annulus
  spack install --test=root annulus+tests        for GPUs: annulus+cuda cuda_arch=90
  spack test run annulus
"""
import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Annulus(CMakePackage, CudaPackage):
    """Annulus trains neural networks on CPUs or NVIDIA GPUs by synchronous data parallelism over MPI."""

    git = f"file://{pathlib.Path(__file__).resolve().parents[7]}"

    version("main", branch="main")

    variant("nccl", default=True, when="+cuda", description="All-reduces of several GPUs; needed in builds with GPUs")
    variant("tests", default=False, description="Build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("hdf5~mpi")
    depends_on("jpeg")
    depends_on("libarchive")
    depends_on("libpng")
    depends_on("mpi@3:")
    depends_on("nlohmann-json@3.11:")
    depends_on("onednn@2.6:2 cpu_runtime=omp")
    depends_on("onnx@1.12:")
    depends_on("pcre2")
    depends_on("protobuf@3.21:")
    depends_on("tomlplusplus@3.3:")
    depends_on("xxhash@0.8:")
    depends_on("zlib-api")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("catch2@2.13:2", type=("build", "link"), when="+tests")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9:")
        depends_on("nccl", when="+nccl")

    conflicts("~nccl", when="+cuda", msg="a build with GPUs needs NCCL: +cuda+nccl")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs' compute capability, such as cuda_arch=90")
    conflicts("target=aarch64:", msg="Annulus computes on x86-64 only")
    conflicts("%gcc@:11", msg="Annulus needs a compiler with C++20, GCC 12 or later")

    generator("ninja")

    def cmake_args(self):
        arguments = [
            self.define_from_variant("ANNULUS_DEVELOPER", "tests"),
            self.define("ANNULUS_CUDA", "on" if self.spec.satisfies("+cuda") else "off"),
            self.define("ANNULUS_ARCH", "x86-64-v4" if "avx512f" in self.spec.target else "x86-64-v3"),
        ]
        if self.spec.satisfies("+cuda"):
            arguments.append(self.define("ANNULUS_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return arguments

    def check(self):
        """Runs the unit tests; the other tests need Debian's packages."""
        if self.spec.satisfies("+tests"):
            with working_dir(self.build_directory):
                ctest("-R", "^unit$", "--output-on-failure")

    def test_models(self):
        """the built-in networks are listed"""
        annulus = which(self.prefix.bin.annulus)
        assert "resnet50" in annulus("models", output=str.split, error=str.split)

    def test_step(self):
        """training steps are measured"""
        annulus = which(self.prefix.bin.annulus)
        options = ("--model", "lenet", "--batch", "8", "--seconds", "0.1", "--threads", "1")
        assert "images/s" in annulus("bench", "step", *options, output=str.split, error=str.split)
