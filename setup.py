"""Which packages there are: the four folders at the top level, installed as hierfl and below it, and their rooms.

And what an index page shows: README.md, whose relative links are made absolute where HIERFL_PAGES says what they are
relative to (``tests/support/release_check.py --pages URL``).
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {
    "hierfl": "hierfl",
    "hierfl.inference": "inference",
    "hierfl.models": "models",
    "hierfl.experiments": "experiments",
}


def readme() -> str:
    text, pages = Path("README.md").read_text(encoding="utf-8"), os.environ.get("HIERFL_PAGES", "")
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", rf"]({pages}\1)", text) if pages else text


setup(
    package_dir=FOLDERS,
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inside}" for inside in find_packages(folder)))
    ],
    long_description=readme(),
    long_description_content_type="text/markdown",
)
