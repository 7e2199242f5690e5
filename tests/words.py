#!/usr/bin/python3
"""Checks comments, messages and manuals for phrases that have a plainer term in the field.

  words.py [ROOT]        prints every such phrase and the better term; exit status 1 if there is one
  words.py --self-test   shows that every phrase is found, and that plain sentences are accepted
"""
import re
import sys

import source_check

# (phrase, better term, example). Phrases match in any case, within identifiers, and across the lines of a comment. Only
# phrases without a proper use belong here.
PHRASES = [
    (r"(un)?usual(ly)?", "default, or auto", "// The usual number of threads."),
    (r"so many", "N, or the number of", "# so many ranks of so many threads"),
    (r"as many times", "N times", "the speed of as many times one rank"),
    (r"told", "reported, logged or set", "// A step that is told waits."),
    (r"tells?( of)?", "reports, logs or shows", "# nothing tells how far it is"),
    (r"alike", "equal, identical or consistent", "// Ranks that were started alike."),
    (r"differently started", "with different options", "// Differently started ranks end."),
    (r"(fails?|ends?|refused|known|reported) at once", "immediately", "// The job ends\n  // at once."),
    (r"who(ever)? (wants|waits|asks|goes|looks)", "to ..., or: a rank that ...", "# Who wants more takes more."),
    (r"(leav(e|es|ing)|left) away", "disable or omit", "// The margin is left away."),
    (r"goes on with", "continues or resumes", "The run goes on with the next epoch."),
    (r"to the bit", "bit-identical", "replicas that are the same to the bit"),
    (r"chang(e|es|ing) no bit", "is bit-identical", "// Threads change no bit."),
    (r"where it is (not )?(there|empty|installed|missing)", "if it is ...", "skipped where it is not installed"),
    (r"as it is there", "as stored", "each is added up as it is there"),
    (r"stands? still", "hangs", "a rank that stands still"),
    (r"contestants?", "candidate", "for (Contestant& contestant : contestants)"),
    (r'(?-i:"Of)', 'the noun first: "Momentum (sgd, lars)"', 'help="Of sgd and lars"'),
]
PLAIN = [
    "// Returns the default number of threads, which is the same on all ranks.",
    "// Ranks with different options abort immediately; replicas are bit-identical.",
    'help="momentum (sgd, lars); default: auto", "of 4 ranks"',
    "# skipped if it is not installed; copies both blocks at once",
]

FILES = ["CMakeLists.txt", "README.md", ".github/CONTRIBUTING.md", ".github/CHANGELOG.md"]
FOLDERS = ["kernels", "collectives", "models", "src", "tests", "scripts"]
SUFFIXES = {"", ".h", ".cpp", ".cu", ".cuh", ".py", ".md", ".txt", ".cmake", ".def", ".lua", ".lsf", ".pbs", ".sbatch"}
EXCLUDED = ("tests/words.py", "tests/fuzz/corpus/")

# A gap between words may be the end of a comment's or a string's line and the beginning of the next.
PATTERNS = [(re.compile(r"(?<![a-z])" + phrase.replace(" ", r'(?:\s|//|#|"|_)+') + r"(?![a-z])", re.IGNORECASE), better)
            for phrase, better, _ in PHRASES]


def find(text):
    """Yields (line, phrase, better term) for every phrase in a text."""
    for pattern, better in PATTERNS:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), better


def check(root):
    """Every phrase below `root`, and the number of files."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
             if path.suffix in SUFFIXES and path.is_file()]
    complaints, seen = [], 0
    for path in [*paths, *(root / name for name in FILES)]:
        name = path.relative_to(root).as_posix()
        if name.startswith(EXCLUDED):
            continue
        seen += 1
        complaints += [f"{name}:{line}: '{phrase}': write {better}"
                       for line, phrase, better in sorted(find(path.read_text()))]
    return complaints, seen


def self_test():
    for (phrase, _, example), pattern in zip(PHRASES, PATTERNS):
        if not pattern[0].search(example):
            sys.exit(f"self-test: {phrase} is not found in: {example}")
    for text in PLAIN:
        if found := list(find(text)):
            sys.exit(f"self-test: {found} in: {text}")
    if [line for line, *_ in find("// fine\n// so\n// many\n")] != [2]:
        sys.exit("self-test: a phrase across two lines is not found")
    print(f"self-test: {len(PHRASES)} phrases found, {len(PLAIN)} plain texts accepted")


source_check.main(check, self_test, fewest=len(FILES) + 1)
