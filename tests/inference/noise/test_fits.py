"""Fits with noise: simulated ones repeat, sites' own do not; what has no share does not leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.noisy import NoisySums
from support.sites import Sites

from hierfl import Federation, UserError, fit
from hierfl.inference import Method
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.models import FedProto
from hierfl.nn.architecture import Architecture

HOW: dict[str, Any] = {"rounds": 3, "dp": "site", "epsilon": 2.0, "progress": False}


def test_a_simulation_repeats_and_resumes(small: Federation, net: Architecture, tmp_path: Path) -> None:
    run = fit(NoisySums(net), small, **HOW)
    assert torch.equal(run.shared["w"], fit(NoisySums(net), small, chunk=2, **HOW).shared["w"])
    fit(NoisySums(net), small, folder=tmp_path, **{**HOW, "rounds": 2})
    plain = fit(NoisySums(net), small, rounds=3, progress=False)
    assert not torch.equal(run.shared["w"], plain.shared["w"])
    other = fit(NoisySums(net), small, seed=1, **HOW)
    assert not torch.equal(run.shared["w"], other.shared["w"])
    assert plain.noise is None
    assert run.noise is not None
    assert run.noise.summary["epsilon"] == pytest.approx(2.0)
    assert run.noise.summary["unit"] == "patient"
    assert run.noise.parts["sums"].mechanism.releases == 3


@pytest.mark.parametrize(
    ("cls", "how", "words"),
    [
        (FedProto, {"dp": "site"}, "reads data without noise"),
        (NoisySums, {"dp": "client"}, r"inside each site alone"),
        (NoisySums, {"dp": "site", "calibrate": "temperature"}, "no share of epsilon"),
        (NoisySums, {"dp": "site", "conformal": 0.1}, "no share of epsilon"),
    ],
)
def test_what_cannot_have_noise_is_refused_in_one_line(
    cls: type[Method], how: dict[str, Any], words: str, small: Federation, net: Architecture
) -> None:
    with pytest.raises(UserError, match=words) as error:
        fit(cls(net), small, rounds=1, epsilon=1.0, progress=False, **how)
    assert "\n" not in str(error.value)


def test_sites_noise_is_the_systems_and_nothing_without_noise_leaves(
    small: Federation, net: Architecture, tmp_path: Path
) -> None:
    """The same seed gives other numbers; a site that is asked again answers the same bytes; there are no metrics."""
    how = {k: v for k, v in HOW.items() if k != "progress"}
    kinds: list[str] = []
    runs = []
    for folder in ("one", "other"):
        sites = Sites(NoisySums(net), small, tmp_path / folder, **how)

        def ask(requests: Mapping[str, bytes], sites: Sites = sites) -> dict[str, bytes]:
            kinds.extend(str(decode(request)[0]["kind"]) for request in requests.values())
            first = sites.ask(requests)
            for name in requests:
                sites.restart(name)  # killed once it had kept its answer
            again = sites.ask(requests)
            assert all(first[name] == again[name] for name in requests if kinds[-1] == "round")
            return again

        runs.append(sites.fit(ask))
    assert not torch.equal(runs[0].shared["w"], runs[1].shared["w"])
    assert set(kinds) == {"hello", "round", "finish"}
    row = runs[0].last("test")
    assert row["bytes"] > 0
    assert [name for name, value in row.items() if name[:3] in ("pm_", "gm_") and value is not None] == []
    assert runs[0].noise is not None
    site = sites.sites[small.ids[0]]
    assert decode(site.answer(_asked(small.ids[0], "hello")))[0]["splits"] == []
    for kind in ("scores", "sums", "calibration"):
        head = decode(site.answer(_asked(small.ids[0], kind)))[0]
        assert head["refused"] == "policy"


def _asked(client: str, kind: str) -> bytes:
    from support.sites import HANDSHAKE

    about = {"kind": kind, "round": 3, "counted": 3, "client": client, "handshake": HANDSHAKE.table()}
    return encode({**about, "split": "train", "draws": [0]}, {})
