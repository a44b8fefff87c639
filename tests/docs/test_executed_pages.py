"""Pages whose numbers are printed by code that a test runs: the gallery's, and the one on a model of one's own."""

from __future__ import annotations

import re

import pytest
from support import gallery_pages
from support.executed_pages import differences, executed
from support.gallery import GALLERY, NAMES, load
from support.paths import ROOT
from support.wrong_table import replaced

OWN = ROOT / "docs" / "own-model.md"
MADE = "python tests/support/gallery_pages.py makes all pages again"


@pytest.mark.cpu(7, "a fit, and all that the page asks of it")
def test_the_code_of_the_page_prints_what_the_page_says() -> None:
    page = OWN.read_text(encoding="utf-8")
    assert not list(differences(page, executed(page))), MADE


def test_lines_for_wrong_models_are_those_that_a_user_reads() -> None:
    page = OWN.read_text(encoding="utf-8")
    assert page == replaced(page), MADE


@pytest.mark.cpu(6, "two fits")
@pytest.mark.parametrize("name", ["eight_schools", "meta_analysis", "spatial"])
def test_a_page_of_the_gallery_is_what_its_script_makes(name: str) -> None:
    page = (GALLERY / f"{name}.md").read_text(encoding="utf-8")
    assert not list(differences(page, gallery_pages.page(name))), MADE


def test_each_model_has_a_page_and_a_line_in_the_index() -> None:
    words = gallery_pages.words()
    assert sorted(words) == NAMES
    assert (GALLERY / "index.md").read_text(encoding="utf-8") == gallery_pages.index()
    for name, says in words.items():
        page = (GALLERY / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {says['title']}\n\n{says['learn']}\n")
        for picture in re.findall(r"\(images/([\w.]+)\)", page):
            assert 0 < (GALLERY / "images" / picture).stat().st_size < 60_000
        assert ("images/" in page) is (name != "spatial")


@pytest.mark.parametrize("name", NAMES)
def test_words_of_a_page_fit_its_model(name: str) -> None:
    """What a picture shows is a site of the model, and the included parts of the file are there."""
    source = (GALLERY / f"{name}.py").read_text(encoding="utf-8")
    picture = gallery_pages.words()[name].get("picture", {})
    sites = [picture[key].partition("[")[0] for key in ("site", "across", "up") if key in picture and key != "across"]
    for site in [*sites, *picture.get("sites", [])]:
        assert f'"{site}"' in source
    assert "\nimport numpy" in source
    assert "\ndef model" in source
    assert callable(load(name).data)


def test_a_number_that_is_off_is_noticed() -> None:
    """The page's own check: one unit of the last digit is allowed, and no more, and no other word."""
    assert not list(differences("mu  1.23  1,027", "mu   1.24 1,027"))
    assert list(differences("mu 1.23", "mu 1.25")) == ["mu 1.23\n  now: mu 1.25"]
    assert list(differences("mu 1.23", "nu 1.23"))
    page = "```python\nprint(1.5)\n```\n\nwords\n\n```text\n9\n```\n"
    assert executed(page) == page.replace("9", "1.5")
