#!/usr/bin/python3
"""Checks that the loops over plain arrays compute with whole vectors: vector_loops.py PROGRAM

g++ compiles such a loop to gathers and scatters if a variable captured by its body has its address taken, and does not
vectorize it if it calls a function that may set errno: correct, but up to ten times slower. Exit status 77 if there is
no objdump."""
import re
import shutil
import subprocess
import sys

if not shutil.which("objdump"):
    print("no objdump here")
    sys.exit(77)
listing = subprocess.run(["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", sys.argv[1]], capture_output=True,
                         text=True, check=True).stdout
loops, bad, inside = set(), set(), None
scalar, packed = set(), set()  # loops that have such arithmetic
for line in listing.splitlines():
    if function := re.match(r"[0-9a-f]+ <(.*)>:", line):
        inside = function[1] if "annulus::cpu::for_each_element" in function[1] else None
        loops |= {inside} - {None}
    elif inside and re.search(r"\tvp?(gather|scatter)", line):
        bad.add(inside)
    elif inside and (found := re.search(r"\tv(?:add|sub|mul|div|sqrt|fn?m(?:add|sub)\d+)([sp])s", line)):
        (packed if found[1] == "p" else scalar).add(inside)
bad |= scalar - packed
print(f"{len(loops)} loops, {len(bad)} of them not in vectors", *sorted(bad), sep="\n")
sys.exit(0 if loops and not bad else 1)
