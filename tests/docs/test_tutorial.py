"""The lines of the tutorial, and of the page on what comes after a fit, are run, and print what the pages say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.cpu(6, "fits, means and simulations of a page")
@pytest.mark.parametrize("page", ["mixed-tutorial.md", pytest.param("mixed-after.md", marks=pytest.mark.slow)])
def test_a_page_says_what_it_prints(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(
        str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert results.attempted > 20
    assert not results.failed
