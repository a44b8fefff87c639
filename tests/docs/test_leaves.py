"""The page of what leaves a site is what the methods' rules say."""

from __future__ import annotations

from support.paths import ROOT

from hierfl.experiments.federate.leaving_page import page


def test_the_page_is_made_from_the_rules() -> None:
    """If not: ``hierfl methods --leaves > docs/leaves.md``."""
    assert (ROOT / "docs" / "leaves.md").read_text(encoding="utf-8") == page()
