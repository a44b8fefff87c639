"""The page's count of published numbers is what committed results say."""

from __future__ import annotations

from pathlib import Path

from hierfl.experiments.papers.summary import markdown, summary

ROOT = Path(__file__).resolve().parents[2]
#: data sets of the machine on which the numbers were run
THERE = ("fashion-mnist", "mnist", "cifar10")


def test_how_many_numbers_have_been_run(tmp_path: Path) -> None:
    for name in THERE:
        (tmp_path / f"{name}.npz").touch()
    text = markdown(summary(ROOT / "experiments/results", tmp_path))
    shown = (ROOT / "docs/paper-tables.md").read_text().partition("<!-- summary -->\n")[2].partition("<!-- end -->")[0]
    assert shown == text
