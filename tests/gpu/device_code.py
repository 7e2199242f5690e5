#!/usr/bin/python3
"""Checks what nvcc made of our kernels: device_code.py FILE, a library or object with kernels.

No kernel has spilled registers or arrays in local memory; of each, enough threads fit a multiprocessor's registers; and
the kernels that process 16 bytes at a time load and store them so, and no single 16-bit values, except those of a whole
channel. A kernel that may start before the one before it has ended awaits that before all else, if it is compiled for
GPUs that start it so. device_code.py --self-test shows that each violation is found. Exit status 77 if there is no
cuobjdump, which scripts/setup --all-tests installs.
"""
import collections
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REGISTERS = 65536  # of a multiprocessor; it has them for 2,048 threads with 32 registers each
RESIDENT = 768     # threads that must fit, which suffices for kernels that are bound by memory
FEWER_RESIDENT = {  # these compute with values that they keep in registers
    "attention": 512, "query_gradients": 512, "key_gradients": 512, "pixel_product": 512,
    "window_product": 512, "differentiate_short_rows": 384}
# The body of its loop over a vector's values is too long to be unrolled.
ARRAY_IN_LOCAL_MEMORY = {"normalize_backward"}
VECTORIZED = {
    "activate", "activate_backward", "add_bias", "add_positions", "add_row_vectors", "add_vectors", "apply",
    "apply_backward", "batch_moments", "cast_vectors", "channel_moments", "channel_sums", "decode_vectors",
    "differentiate_short_rows", "drop", "embed", "encode_vectors", "gradient_sums", "hand_on", "input_gradients",
    "layer_norm", "layer_norm_backward", "layer_norm_sums", "mask_and_add_up", "max_pool", "max_pool_backward",
    "move_vectors", "norm_short_rows", "prelu", "prelu_backward", "put_vectors", "rectify", "rectify_backward",
    "softmax", "softmax_backward", "softmax_gradients", "softmax_losses", "sum_coded_vectors", "sum_vectors",
    "swap_vectors", "update", "widen_vectors"}
SINGLE_16_BIT = {"batch_moments": 2}  # of each channel, by the last block


def name_of(symbol):
    """The function's own name: _ZN7annulus4cuda61_GLOBAL__N__...8activateI6__halfEEv... is activate."""
    at, name = (3, "") if symbol.startswith("_ZN") else (2, "")
    while length := re.match(r"\d+", symbol[at:]):
        at += len(length[0])
        name = symbol[at:at + int(length[0])]
        at += int(length[0])
    return name or symbol


def check_resources(text):
    """The complaints, and the number of kernels, of cuobjdump --dump-resource-usage."""
    complaints = []
    usages = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    for symbol, registers, stack, local in usages:
        name = name_of(symbol)
        if int(stack) + int(local) > 0 and name not in ARRAY_IN_LOCAL_MEMORY:
            complaints.append(f"{name} has {int(stack) + int(local)} bytes in local memory: {symbol}")
        resident = FEWER_RESIDENT.get(name, RESIDENT)
        if int(registers) > REGISTERS // resident:
            complaints.append(f"{name} has {registers} registers, of which {resident} threads do not fit: {symbol}")
    return complaints, len(usages)


def accesses_of(text):
    """Symbol -> its global loads and stores, of cuobjdump -ptx."""
    accesses, symbol = collections.defaultdict(list), None
    for line in text.splitlines():
        if entry := re.match(r"(?:\.visible )?\.entry (\w+)", line):
            symbol = entry[1]
        elif access := re.search(r"(?:^|\s)((?:ld|st)\.global\S*)", line):
            accesses[symbol].append(access[1])
    return accesses


def check_accesses(text):
    complaints, seen = [], set()
    for symbol, accesses in accesses_of(text).items():
        name = name_of(symbol)
        if name not in VECTORIZED:
            continue
        seen.add(name)
        if not any(re.match(r"ld.*\.v4\.[bfu]32$", access) for access in accesses):
            complaints.append(f"{name} has no load of 16 bytes: {symbol}")
        narrow = [access for access in accesses if re.search(r"(?<!v4)\.[bu]16$", access)]
        if len(narrow) > SINGLE_16_BIT.get(name, 0):
            complaints.append(f"{name} has {len(narrow)} loads or stores of single 16-bit values: {symbol}")
    return complaints + [f"there is no kernel {name}" for name in sorted(VECTORIZED - seen)]


def check_early_kernels(text):
    """The complaints of kernels that take a Predecessor (kernels/cuda/runtime/runtime.h), of cuobjdump -ptx."""
    complaints, target, unawaited = [], 0, None
    for line in text.splitlines():
        if found := re.match(r"\.target sm_(\d+)", line):
            target = int(found[1])
        elif entry := re.match(r"(?:\.visible )?\.entry (\w+)", line):
            unawaited = entry[1] if target >= 90 and "11Predecessor" in entry[1] else None
        elif "griddepcontrol.wait" in line:
            unawaited = None
        elif unawaited and re.match(r"\s*(?:@\S+\s+)?(?:(?:ld|st|atom|red)\.(?!param)|bra|ret)", line):
            complaints.append(f"{name_of(unawaited)} does not await its predecessor before '{line.strip()}': {unawaited}")
            unawaited = None
    return complaints


def find_cuobjdump():
    installed = sorted(ROOT.glob("build/peers/cuobjdump/lib/python*/site-packages/nvidia/*/bin/cuobjdump"))
    return shutil.which("cuobjdump") or (installed[-1] if installed else None)


def main(file):
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print("no cuobjdump here")
        return 77

    def dump(option):
        return subprocess.run([cuobjdump, option, file], capture_output=True, text=True, check=True).stdout
    complaints, kernels = check_resources(dump("--dump-resource-usage"))
    ptx = dump("-ptx")
    complaints += check_accesses(ptx) + check_early_kernels(ptx)
    print(f"{kernels} kernels, {len(complaints)} complaints", *complaints, sep="\n")
    return 1 if complaints or kernels == 0 else 0


def self_test():
    activate, attention = "_ZN7annulus4cuda12_GLOBAL__N_18activateI6__halfEEvPKT_", "_ZN7annulus4cuda9attentionEv"
    assert name_of(activate) == "activate" and name_of("_Z3runv") == "run"

    def resources(symbol, registers=40, stack=0, local=0):
        return check_resources(f" Function {symbol}:\n  REG:{registers} STACK:{stack} SHARED:0 LOCAL:{local} CONSTANT[0]:400\n")
    assert resources(activate, 85) == ([], 1)
    assert resources(attention, 128) == ([], 1)
    assert "86 registers" in resources(activate, 86)[0][0]
    assert "129 registers" in resources(attention, 129)[0][0]
    assert "8 bytes in local memory" in resources(activate, stack=8)[0][0]
    assert "16 bytes in local memory" in resources(activate, local=16)[0][0]

    def accesses(*instructions, symbol=activate):
        body = "".join(f"\t{instruction} \t[%rd1], %r1;\n" for instruction in instructions)
        complaints = check_accesses(f".visible .entry {symbol}(\n)\n{{\n{body}}}\n")
        return [text for text in complaints if "there is no" not in text]
    assert accesses("ld.global.v4.u32", "ld.global.f32", "st.global.v4.u32") == []
    assert accesses("ld.global.nc.v4.f32", "st.global.v4.u16") == []
    assert "no load of 16 bytes" in accesses("ld.global.v2.u32")[0]
    assert "1 loads or stores of single 16-bit" in accesses("ld.global.v4.u32", "st.global.u16")[0]
    moments, of_channel = "_ZN7annulus4cuda13batch_momentsEv", ["st.global.u16"] * 3
    assert accesses("ld.global.v4.u32", *of_channel[:2], symbol=moments) == []
    assert "3 loads or stores of single 16-bit" in accesses("ld.global.v4.u32", *of_channel, symbol=moments)[0]
    assert "there is no kernel update" in check_accesses("")

    def early(*instructions, symbol="_ZN7annulus4cuda3runENS0_11PredecessorEPf", target=90):
        body = "".join(f"\t{instruction};\n" for instruction in instructions)
        return check_early_kernels(f".target sm_{target}\n.visible .entry {symbol}(\n)\n{{\n{body}}}\n")
    assert early("ld.param.u64 %rd1, [p]", "griddepcontrol.wait", "ld.global.f32 %f1, [%rd1]", "ret") == []
    assert "before 'ld.global.f32" in early("ld.global.f32 %f1, [%rd1]", "griddepcontrol.wait", "ret")[0]
    assert "run does not await its predecessor before '@%p1 bra" in early("@%p1 bra $L", "griddepcontrol.wait", "ret")[0]
    assert "before 'ret;'" in early("ret")[0]
    assert early("ret", target=80) == early("ret", symbol=activate) == []


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        sys.exit(main(sys.argv[1]))
