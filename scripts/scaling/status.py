"""A line on the terminal that says what is being done; without a terminal nothing."""
import os
import sys

CLEAR = "\r\x1b[2K"


def show(text):
    """Replaces the line; "" removes it."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        print(CLEAR + text[:columns - 1], end="", file=sys.stderr, flush=True)


def time_left(seconds):
    """For people: "40 s left"."""
    if seconds < 100:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 6000 else f"{seconds / 3600:.1f} h left"
