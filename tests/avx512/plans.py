"""plans.py TESTS CLAIM: runs the unit tests of oneDNN's plans as on a processor with AVX-512; no plan is executed.

Skipped without objdump (exit code 77)."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

UNDEFINED = {"cpuid": (b"\x0f\xa2", b"\x0f\x0b"), "xgetbv": (b"\x0f\x01\xd0", b"\x0f\x0b\x90")}
AVX512_CORE = 0x27  # dnnl_cpu_isa_avx512_core


def library_of(program):
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return re.search(r"(libdnnl\.so\S*) => (\S+)", listed).groups()


def regions(text):
    """Where the code queries several features in a row; bytes that only look like a query are far apart.
    (Disassembling the whole library would take 15 seconds.)"""
    together = []
    for at in (match.start() for match in re.finditer(re.escape(UNDEFINED["cpuid"][0]), text)):
        if together and at - together[-1][-1] < 4096:
            together[-1].append(at)
        else:
            together.append([at])
    return [(places[0] - 64, places[-1] + 64) for places in together if len(places) > 2]


def without_features(library):
    """The library's bytes, with undefined instructions in place of feature queries."""
    code = bytearray(pathlib.Path(library).read_bytes())
    sections = subprocess.run(["objdump", "-h", library], check=True, capture_output=True, text=True).stdout
    size, start, offset = (int(x, 16) for x in re.search(r"\.text +(\w+) +(\w+) +\w+ +(\w+)", sections).groups())
    for begin, end in regions(code[offset:offset + size]):
        listed = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"--start-address={start + begin}",
                                 f"--stop-address={start + end}", library],
                                check=True, capture_output=True, text=True).stdout
        for address, name in re.findall(r"^ *(\w+):\t(cpuid|xgetbv)", listed, re.MULTILINE):
            place = int(address, 16) - start + offset
            real, undefined = UNDEFINED[name]
            assert code[place:place + len(real)] == real
            assert name != "cpuid" or code[place + 2] != 0x90  # the claim would mistake it for xgetbv
            code[place:place + len(real)] = undefined
    return code


def main(tests, claim):
    if shutil.which("objdump") is None:
        print("skipped: objdump is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        name, library = library_of(tests)
        pathlib.Path(folder, name).write_bytes(without_features(library))
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "LD_PRELOAD": claim}
        isa = f"import ctypes; print(ctypes.CDLL('{name}').dnnl_get_effective_cpu_isa())"
        claimed = subprocess.run([sys.executable, "-c", isa], env=environment, check=True, capture_output=True)
        assert int(claimed.stdout) >= AVX512_CORE, "oneDNN does not believe that there is AVX-512"
        return subprocess.run([tests, "-#", "[#plan_test]"], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
