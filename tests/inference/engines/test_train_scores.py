"""Sites that give no scores on their training rows: a study runs to its end, and its metrics are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sites import HANDSHAKE, Sites, ready

from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.wire import decode, encode, put_under
from hierfl.models import PFedVEM


def reticent(sites: Sites, names: list[str]) -> None:
    """These begin again, without scores of training rows."""
    for name in names:
        sites.sites[name] = Site(
            sites.method, sites.own[name], sites.options, sites.folder / name, HANDSHAKE, train_scores=False
        )


def metrics(sites: Sites) -> dict:
    run = sites.fit()
    (row,) = [row for row in run.evaluations if row["round"] == 1]
    return {name: value for name, value in row.items() if name.startswith(("pm_", "gm_"))}


@pytest.mark.parametrize("some", [1, 4])
def test_sites_without_scores_of_training_rows_are_not_asked(some: int, tmp_path: Path) -> None:
    how = {"rounds": 1, "participation": 1.0, "splits": ("train",)}
    sites = ready(PFedVEM, {}, tmp_path / "sites", **how)
    names = list(sites.sites)[:some]
    reticent(sites, names)
    kinds: dict[str, set[str]] = {name: set() for name in sites.sites}
    for name, site in sites.sites.items():
        plain = site.answer

        def noted(request: bytes, name: str = name, plain: object = plain) -> bytes:
            kinds[name].add(decode(request)[0]["kind"])
            return plain(request)  # type: ignore[operator]

        site.answer = noted  # type: ignore[method-assign]
    scores = metrics(sites)
    assert {name for name, asked in kinds.items() if "scores" not in asked} == set(names)
    assert all((value is None) == (some == 4) for name, value in scores.items() if "worst" not in name), scores
    json.dumps(scores, allow_nan=False)


def test_a_server_that_asks_nevertheless_is_refused(tmp_path: Path) -> None:
    sites = ready(PFedVEM, {}, tmp_path, rounds=1, participation=1.0, splits=("train",))
    reticent(sites, ["place-00"])
    site = sites.sites["place-00"]
    head = {"kind": "scores", "round": 0, "client": "place-00", "counted": 0, "handshake": HANDSHAKE.table()}
    asked = {**head, "split": "train", "draws": [0], "final": False}
    reply, tensors = decode(site.answer(encode(asked, put_under("shared", site.shared))))
    assert "no scores on its training rows" in reply["error"]
    assert not tensors
    assert "error" not in decode(site.answer(encode({**asked, "split": "test"}, put_under("shared", site.shared))))[0]
