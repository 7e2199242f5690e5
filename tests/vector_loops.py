#!/usr/bin/python3
"""Checks that the loops over plain arrays load and store whole vectors: vector_loops.py PROGRAM

g++ compiles such a loop to gathers and scatters if a variable captured by its body has its address taken: correct, but
ten times slower. Exit status 77 if there is no objdump."""
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
for line in listing.splitlines():
    if function := re.match(r"[0-9a-f]+ <(.*)>:", line):
        inside = function[1] if "annulus::cpu::for_each_element" in function[1] else None
        loops |= {inside} - {None}
    elif inside and re.search(r"\tvp?(gather|scatter)", line):
        bad.add(inside)
print(f"{len(loops)} loops, {len(bad)} of them with gathers or scatters", *sorted(bad), sep="\n")
sys.exit(0 if loops and not bad else 1)
