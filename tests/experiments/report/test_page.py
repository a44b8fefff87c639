"""Pages: one file, nothing from elsewhere, everything in it; looked at by a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call, command
from support.drawing import unrendered
from support.once import Once
from support.run_folders import Finished, arrays

from hierfl.experiments.report.page import POLICY, SCRIPT, Section, render
from hierfl.experiments.run_folder.summary import fit_warnings

pytestmark = pytest.mark.figures("blank")

VOID = {"meta", "link", "img", "br"}
#: whose pages are drawn in full, in the slow set
METHODS = ("fedavg", "local", "fedper", "pfedv", "pfedvmp", "fedpop")


class Reader(HTMLParser):
    """Checks that elements are closed in order, and collects texts, pictures and whatever points elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[str] = []
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not str(value).startswith("data:"):
                self.elsewhere.append(str(value))
            if tag == "img" and name == "alt":
                self.pictures.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def read(path: Path) -> Reader:
    reader, text = Reader(), path.read_text()
    reader.feed(text)
    assert reader.open == []
    assert reader.elsewhere == []
    assert text.count("<script") == text.count(f"<script>{SCRIPT}</script>") == 1
    assert POLICY.replace("'", "&#39;") in text
    assert not re.search(r"@import|url\(|https?://", text)
    return reader


def make(root: Path) -> None:
    """Two runs, their comparison, and pages of one of them and of that."""
    data = ["--data", arrays(root / "d.npz"), "--split", "natural"]  # features of few examples are soon drawn
    for prior in ("hierarchical", "flat"):
        small = [*data, "--rounds", 2, "--network", "mlp:8", "--draws", 3, "--quiet"]
        command("run", "pfedvem", "--prior", prior, *small, "--out", root / prior)
    command("compare", root / "hierarchical", root / "flat", "--out", root / "c", "--quiet")
    command("report", root / "hierarchical", "--quiet")


def make_blank(root: Path) -> None:
    """The same, with white pictures."""
    with unrendered():
        make(root)


@pytest.fixture
def pages(once: Once, request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """A copy of them: of the rendered ones where a test's parameter says so."""
    rendered = getattr(request, "param", False)
    made = once("pages rendered", make) if rendered else once("pages blank", make_blank)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return [tmp_path / "hierarchical" / "report.html", tmp_path / "c" / "report.html"]


def test_a_page_holds_everything(pages: list[Path], hierfl: Call, tmp_path: Path) -> None:
    run, comparison = map(read, pages)
    assert {"rounds", "reliability", "confidence", "features classes"} <= set(run.pictures)
    assert {"forest", "predictive check", "predictive check clients", "confidence deviation"} <= set(run.pictures)
    assert "cost" not in run.pictures  # each round sends as much: the curve over rounds says it
    assert len(set(run.pictures)) == len(run.pictures)
    assert "All 3 clients in every round." in run.texts
    assert not {"overview", "posterior", "trace"} & set(run.pictures)  # no chains
    summary = json.loads((tmp_path / "hierarchical" / "summary.json").read_text())
    assert f"{summary['pm_accuracy']:.1%}" in run.texts
    assert {"head_lr", "sigma_0", summary["versions"]["torch"], "seconds_per_round"} <= set(run.texts)
    assert {"gain accuracy", "gain nll", "size 1 accuracy"} <= set(comparison.pictures)
    assert {"Gains", "Who gains", "flat prior", "accuracy, pp"} <= set(comparison.texts)
    before = pages[1].read_bytes()
    pages[1].unlink()
    code, out, err = hierfl("report", "c")
    assert code == 0, err
    assert out.splitlines()[0] == "c/report.html"
    assert pages[1].read_bytes() == before  # made anew from the runs
    shutil.rmtree(tmp_path / "flat")
    code, _, err = hierfl("report", "c")
    assert code == 2
    assert "flat is not the folder of a run" in err
    assert pages[1].read_bytes() == before
    (tmp_path / "hierarchical" / "summary.json").write_text("{")
    code, _, err = hierfl("report", "hierarchical", "--no-features")
    assert code == 2
    assert "summary.json is damaged" in err


def test_a_table(hierfl: Call, tmp_path: Path) -> None:
    code, _, err = hierfl(
        "run",
        "mixed-effects",
        "--data",
        "radon-like",
        "-T",
        8,
        "--set",
        "draws=50",
        "--test-fraction",
        0.2,
        "-q",
        "--out",
        "m",
    )
    assert code == 0, err
    code, out, err = hierfl("report", "m")
    assert code == 0, err
    page = read(tmp_path / "m" / "report.html")
    assert {"shrinkage Intercept", "effects Intercept", "predictive check"} <= set(page.pictures)
    # Draws are independent, and effects show what a forest would.
    assert not {"trace", "rank", "mixing", "forest"} & set(page.pictures)
    assert "county-84" in page.texts  # of the sortable table
    assert {"sd(Intercept)", "p_loo", "kB a message", "All 85 clients in every round."} <= set(page.texts)
    assert "m/figures/forest.png" in out.splitlines()
    estimates = pd.read_csv(tmp_path / "m" / "estimates.csv")
    assert len(estimates) == 85


def test_chains_and_a_client_that_is_away(hierfl: Call, tmp_path: Path) -> None:
    arrays(tmp_path / "d.npz")
    data = ["--data", "d.npz", "--split", "natural", "--network", "linear"]
    small = [*data, "--rounds", 6, "--participation", 0.6, "--quiet"]
    chains = [f"--set={pair}" for pair in ("chains=2", "final_steps=60", "final_keep=20")]
    code, _, err = hierfl("run", "fedpop", *small, *chains, "--out", "m")
    assert code == 0, err
    code, out, err = hierfl("report", "m", "--rhat", "--no-features")
    assert code == 0, err
    page = read(tmp_path / "m" / "report.html")
    assert {"trace", "rank", "ess", "mixing", "forest", "participation"} <= set(page.pictures)
    assert any(re.match(r"Chains: R-hat at most \d+\.\d{3}, bulk ESS at least \d+", text) for text in page.texts)
    frame = pd.read_csv(tmp_path / "m" / "participation.csv", index_col="round")
    assert frame.shape == (6, 3)
    assert set(np.unique(frame)) == {0, 1}
    told = next(text for text in page.texts if "clients a round on average" in text)
    assert told.startswith(f"{frame.to_numpy().sum(1).mean():.1f} clients")
    assert "m/figures/trace.png" in out.splitlines()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fedavg", id="fedavg, blank"),
        *(pytest.param(name, id=name, marks=(pytest.mark.slow, pytest.mark.figures)) for name in METHODS),
    ],
)
def test_every_method_has_a_page(method: str, hierfl: Call, tmp_path: Path) -> None:
    small = ["--rounds", 1, "-J", 3, "--network", "mlp:4", "--split", "iid", "--draws", 2, "--quiet"]
    code, _, err = hierfl("run", method, *small, "--out", "r")
    assert code == 0, err
    code, _, err = hierfl("report", "r", "--no-features", "--quiet")
    assert code == 0, err
    assert {"rounds", "reliability", "predictive check clients"} <= set(read(tmp_path / "r" / "report.html").pictures)


def test_a_client_may_be_called_round(hierfl: Call, tmp_path: Path) -> None:
    rows = ["y,x,site"] + [f"{k % 7},{k % 5},{'round' if k % 3 else 'population'}" for k in range(30)]
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    few = ["--set", "draws=20", "--quiet"]
    code, _, err = hierfl(
        "run", "mixed-effects", "--data", "d.csv", "--formula", "y ~ x + (1 | site)", *few, "--out", "r"
    )
    assert code == 0, err
    code, _, err = hierfl("report", "r", "--quiet")
    assert code == 0, err
    assert "All 2 clients in every round." in read(tmp_path / "r" / "report.html").texts


def test_what_the_screen_says_of_the_fit_stands_on_the_page() -> None:
    messages = fit_warnings({"off_maximum": 1e9, "rhat": 1.02, "ess_bulk": 350.0})
    assert messages[0].startswith("the likelihood is flat")
    assert messages[1] == "chains: R-hat at most 1.020, bulk ESS at least 350: longer ones would be safer"
    assert fit_warnings({"off_maximum": 0.2})[0].startswith("not at the maximum yet: 0.2 standard errors")
    assert fit_warnings({"off_maximum": 0.001, "rhat": 1.01, "ess_bulk": 400.0}) == [
        "chains: R-hat at most 1.010, bulk ESS at least 400"
    ]
    for rhat, ess in ((1.06, 1000.0), (1.0, 90.0)):
        assert fit_warnings({"rhat": rhat, "ess_bulk": ess})[0].endswith(
            "they have not mixed; do not trust their draws"
        )
    assert fit_warnings({"rhat": None, "kept_draws": None}) == []
    messages = fit_warnings({"rhat": None, "kept_draws": 1.0})
    assert messages == ["chains have left 1 draw: whether they have mixed cannot be said"]
    short_chains = fit_warnings({"rhat": 1.02, "ess_bulk": 12.0, "ess_bulk_median": 31.0})
    assert short_chains == [
        "chains: R-hat at most 1.020, bulk ESS at least 12, median 31: they have not mixed; do not trust their draws"
    ]


def test_rhat_of_one_chain_is_refused(hierfl: Call, finished: Finished) -> None:
    finished("pfedvem", "one")
    code, _, err = hierfl("report", "one", "--rhat")
    assert code == 2
    assert err.startswith("error: R-hat compares chains, and here is one")
    assert len(err.splitlines()) == 1


def test_what_has_drawn_no_posterior_and_is_from_before(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    """A page of a run that diverged, or was made by an older version, has all the rest."""
    finished("pfedvem", "old")
    for name in ("posterior.nc", "participation.csv", "history.csv"):
        (tmp_path / "old" / name).unlink()
    code, _, err = hierfl("report", "old", "--no-features")
    assert code == 0, err
    texts = read(tmp_path / "old" / "report.html").texts
    assert "None: it has no draws (posterior.nc)." in texts
    assert "This run is from before it was kept." in texts
    code, _, err = hierfl("report", "old", "--rhat")
    assert code == 2
    assert "no draws (posterior.nc)" in err


def test_text_is_text() -> None:
    text = render("a < b", "x & y", [Section("<h>", ["1 < 2"], [(["<c>"], [["<script>"]])])])
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert {"a < b", "x & y", "<h>", "1 < 2", "<c>", "<script>"} <= set(reader.texts)


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "pages",
    [pytest.param(False, id="blank"), pytest.param(True, id="rendered", marks=pytest.mark.slow)],
    indirect=True,
)
def test_a_browser_shows_it(pages: list[Path], tmp_path: Path, width: int) -> None:
    """No console errors, nothing wider than the window but in boxes that scroll, every picture and column there."""
    look = """<script>addEventListener("load", () => {
      const all = [...document.images];
      const boxes = [document.documentElement, ...[...document.querySelectorAll(".short")].map(t => t.parentElement)];
      const wide = boxes.some(box => box.scrollWidth > box.clientWidth);
      document.title = JSON.stringify({pictures: all.length, drawn: all.filter(i => i.naturalWidth > 0 &&
        i.getBoundingClientRect().width > 200).length, wide, width: innerWidth});
    })</script>"""
    for number, path in enumerate(pages):
        copy = tmp_path / f"{number}.html"
        page = re.sub("<meta http-equiv=[^>]*>", "", path.read_text())  # which allows no script but the page's own
        copy.write_text(page.replace("</body>", f"{look}</body>"))
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={max(width, 500)},900", "--enable-logging=stderr", "--virtual-time-budget=5000",
        ]  # fmt: skip
        # A window is at least 500 wide: the phone's width is that of a frame.
        frame = tmp_path / f"{number}-frame.html"
        frame.write_text(
            f'<link rel="icon" href="data:,"><iframe src="{copy.name}" style="width:{width}px;height:800px;border:0">'
            '</iframe><script>addEventListener("load", () => setTimeout(() => document.title = '
            'document.querySelector("iframe").contentDocument.title, 500))</script>'
        )
        done = subprocess.run(
            [str(BROWSER), *flags, "--allow-file-access-from-files", "--dump-dom", f"file://{frame}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        title = re.search(r"<title>(.*?)</title>", done.stdout)
        assert title, done.stdout[:500]
        seen = json.loads(title[1].replace("&quot;", '"'))
        assert seen["width"] == width
        assert seen["pictures"] == seen["drawn"] > 3
        assert not seen["wide"]
        assert "CONSOLE" not in done.stderr, done.stderr
