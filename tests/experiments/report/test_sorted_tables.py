"""Tables of a page that can be sorted, and pictures that can be read on a phone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.drawing import blank

from hierfl.experiments.report.page import Section, legible_width, render
from hierfl.experiments.report.run_page import _each_client

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def many_clients() -> str:
    """A page with a table of a thousand clients, some with names of markup."""
    names = [f"<img src=x onerror=alert({k})>" if k % 100 == 7 else f"ward {k}" for k in range(1000)]
    rows = [[name, f"{1000 - k:,}", "" if k == 3 else f"{k / 10:.1f}%"] for k, name in enumerate(names)]
    return render("many", "", [Section("Each client", tables=[(["client", "n", "accuracy"], rows)])])


def test_a_long_table_can_be_sorted_and_a_short_one_has_no_buttons() -> None:
    text = many_clients()
    assert "<td>&lt;img src=x onerror=alert(7)&gt;</td>" in text
    assert "<img src=x" not in text
    assert text.count("<button") == 3
    assert "<button" not in render("", "", [Section("few", tables=[(["a"], [["b"]])])])


def test_a_pictures_width_is_that_at_which_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(blank(1500, 30))
    assert legible_width(path) == 760  # ten inches
    assert "min-width: min(60rem, 760px)" in render("", "", [Section("s", pictures=[("p", path)])])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_sorts_a_table(tmp_path: Path) -> None:
    """Numbers as numbers and empty cells last; the page's own script runs under its policy, and no other does."""
    look = """<script>addEventListener("load", () => {
      const first = () => [...document.querySelectorAll("tbody tr")].map(row => row.cells[1].textContent);
      const [name, n, accuracy] = document.querySelectorAll("th button"), seen = [];
      n.click(); seen.push(first()[0]); n.click(); seen.push(first()[0]);
      accuracy.click(); seen.push(first().at(-1)); name.click(); seen.push(first()[10]);
      document.title = JSON.stringify(seen);
    })</script>"""
    page, policy = many_clients(), "script-src"
    allowed = base64.b64encode(hashlib.sha256(look[8:-9].encode()).digest()).decode()
    page = page.replace(policy, f"{policy} 'sha256-{allowed}'").replace("</body>", f"{look}</body>")
    (tmp_path / "many.html").write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [str(BROWSER), *flags, "--virtual-time-budget=3000", "--dump-dom", f"file://{tmp_path / 'many.html'}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title
    assert json.loads(title[1].replace("&quot;", '"')) == ["1", "1,000", "997", "1,000"]


def test_clients_are_in_a_named_order_and_no_test_data_have_no_column(tmp_path: Path) -> None:
    for n_test, columns in (("0", ["client", "n"]), ("2", ["client", "n", "n_test"])):
        (tmp_path / "clients.csv").write_text(f"client,n,n_test\na,3,0\nb,9,{n_test}\n")
        section = _each_client(tmp_path)
        assert section is not None
        assert list(section.tables[0][0]) == columns
        assert [row[0] for row in section.tables[0][1]] == ["b", "a"]
        assert section.text == ["From the client with the most training rows to the one with the fewest."]
