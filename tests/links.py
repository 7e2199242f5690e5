#!/usr/bin/python3
"""Checks that links between the manual's pages lead to files and headings that exist.

  links.py [ROOT]        prints every broken link; exit status 1 if there is one
  links.py --self-test   shows that broken links are found, and that good links are accepted
"""
import re
import sys
import tempfile
from pathlib import Path

import source_check

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page):
    """Yields (line, target) for every link of a page that leads nowhere."""
    text = page.read_text()
    for match in LINK.finditer(text):
        name, _, anchor = match[1].partition("#")
        if name.startswith(("http:", "https:")):
            continue
        target = page.parent / name if name else page
        if not target.exists() or anchor and anchor not in anchors(target):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def check(root):
    """Every broken link below `root`, and the number of pages."""
    hidden = re.compile(r"/(build|shared)[^/]*/|/\.git/")
    pages = [page for page in sorted(root.rglob("*.md")) if not hidden.search(f"/{page.relative_to(root).as_posix()}")]
    return [f"{page.relative_to(root)}:{line}: {target}" for page in pages for line, target in broken(page)], len(pages)


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.md"
        page.write_text("# A page's name\n[a](page.md#a-pages-name) [b](#a-pages-name) [c](https://x)\n[d](#none) [e](none.md)\n")
        if (found := check(Path(folder))[0]) != ["page.md:3: #none", "page.md:3: none.md"]:
            sys.exit(f"self-test: {found}")
    print("self-test: 2 broken links found, 3 good ones accepted")


source_check.main(check, self_test, fewest=10)
