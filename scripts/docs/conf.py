"""The manual as a site, from the pages beside the code: pip install sphinx myst-parser, then

  sphinx-build -c scripts/docs . build/docs
"""
project = "Annulus"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", ".github/CONTRIBUTING.md", "src/**.md", "kernels/**.md", "collectives/*.md", "models/*.md",
                    "scripts/**.md", "tests/**.md"]
myst_heading_anchors = 4  # GitHub's anchors, which the pages link to
# The README lists the pages in a table.
suppress_warnings = ["toc.not_included", "myst.header"]
html_title = "Annulus"
