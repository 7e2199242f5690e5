"""The command line of the checks of the sources: include_rule.py and words.py."""
import pathlib
import sys


def main(check, self_test, fewest):
    """Runs self_test() with --self-test, otherwise check(root), which returns the complaints and the number of places
    seen. Fewer than `fewest` places mean the wrong folder, not a good tree."""
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    complaints, seen = check(root)
    print(*complaints, sep="\n", end="\n" if complaints else "")
    sys.exit(1 if complaints or seen < fewest else 0)
