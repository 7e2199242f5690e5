"""Every command of the manual's pages works as it is written, after those of README.md; sizes are smaller."""
import concurrent.futures
import pathlib
import re
import shutil
import tempfile
import unittest

import helper
import manual
from manual import ROOT


class Pages(unittest.TestCase):
    """Each page is typed in a folder of its own: what README.md's commands left."""

    def test_commands(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="annulus-test-"))
        self.addCleanup(shutil.rmtree, folder)
        variables, first = manual.environment(folder), folder / "README.md"
        manual.prepare(first)
        readme, *pages = manual.pages()
        self.assertEqual(manual.type_page(readme, first, variables, left_out="scripts/study "), [])
        manual.prepare_pages(first)

        def typed(page):
            place = folder / "-".join(page.relative_to(ROOT).parts)
            shutil.copytree(first, place, symlinks=True)
            failed = manual.type_page(page, place, variables)
            shutil.rmtree(place)
            return failed
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            failed = [one for found in pool.map(typed, pages) for one in found]
        self.assertEqual(failed, [], "\n".join(failed))

    def test_studies_of_readme_are_typed(self):
        shown = {page: {re.sub(" *#.*", "", command) for _, command in manual.commands(ROOT / page) if command.startswith("scripts/study ")}
                 for page in ("README.md", "scripts/scaling/README.md")}
        self.assertLessEqual(shown["README.md"], shown["scripts/scaling/README.md"])


if __name__ == "__main__":
    helper.main()
