"""Masked sums are the plain ones, whoever is lost at whatever step, and nothing is opened of too few."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.masked_sites import HANDSHAKE, Masked, numbers, plain

from hierfl.errors import UserError
from hierfl.inference.engines.remote.masks.groups import groups_of, threshold
from hierfl.inference.engines.remote.masks.parts import Mode, Total
from hierfl.inference.engines.remote.wire import decode, encode, header
from hierfl.inference.state import State

SEVEN = numbers(7)
MODES: list[Mode] = ["whole", "shares"]


def check(total: Total | None, expected: State, clients: list[int]) -> None:
    """To the precision of the fixed point, which is that of the dtype here."""
    assert total is not None
    assert total.clients == clients
    for name, value in expected.items():
        rtol = 1e-6 if value.dtype == torch.float32 else 1e-14
        assert total.sums[name].dtype == value.dtype
        assert torch.allclose(total.sums[name], value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sites", [3, 7])
def test_masked_sums_are_the_plain_ones(mode: Mode, sites: int, tmp_path: Path) -> None:
    values = numbers(sites)
    masked = Masked(tmp_path, values, mode=mode, slots=2)
    for number, kind in enumerate(["prepare", "round", "scores", "sums", "calibration", "round"]):
        check(masked.sum(number, kind), plain(values), list(range(sites)))
    kinds = [header(request)["kind"] for _, request, _ in masked.transcript]
    assert kinds.count("keys") == sites * (1 if mode == "whole" else 2)  # three questions of two slots
    for kind, more in (("round", {"told"} if mode == "shares" else set()), ("sums", set())):
        for name, answer in masked.rows(kind):
            head, tensors = decode(answer)
            assert head == {"round": head["round"], "masked": True, "client": name}
            assert tensors.keys() == {"masked"} | more


@pytest.mark.parametrize("step", ["keys", "shares", "round", "-round", "sign", "-sign", "open", "-open"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_whoever_is_lost_the_sum_is_of_those_who_have_answered(step: str, lost: int, tmp_path: Path) -> None:
    """Of seven, five sign and open: two may be lost at a step, and with three nothing is opened."""
    masked = Masked(tmp_path, SEVEN, mode="shares", slots=2)
    gone = list(SEVEN)[1 : 1 + lost]
    masked.away = {step: gone}
    total = masked.sum()
    if lost > 7 - threshold(7):
        assert total is None
        return
    stay = [name for name in SEVEN if name not in gone or step.strip("-") in ("sign", "open")]
    check(total, plain(SEVEN, stay), [index for index, name in enumerate(SEVEN) if name in stay])
    masked.away = {}
    check(masked.sum(2), plain(SEVEN), list(range(7)))  # who was away as keys were made is there again


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_heights_are_exact_to_twelve_digits_whoever_is_lost(lost: int, tmp_path: Path) -> None:
    """Log-likelihoods that nearly cancel, with nobody lost, one site, and as many as may be: of seven two."""
    draw = torch.Generator().manual_seed(lost)
    heights = -(10.0 ** torch.arange(7)) * torch.rand((200, 7), generator=draw, dtype=torch.float64)
    heights[:, 0] = -heights[:, 1:].sum(1) * (1 - 1e-6)
    masked = Masked(tmp_path, {name: {"height": heights[:, j]} for j, name in enumerate(SEVEN)}, mode="shares", slots=1)
    masked.away = {"round": list(SEVEN)[7 - lost :]}
    total = masked.sum()
    assert total is not None
    expected = torch.tensor([math.fsum(row) for row in heights[:, : 7 - lost].tolist()], dtype=torch.float64)
    torch.testing.assert_close(total.sums["height"], expected, rtol=1e-12, atol=0)


def test_other_sites_may_be_lost_at_each_step(tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN, mode="shares")
    masked.away = {"round": ["s000", "s001"], "sign": ["s002", "s003"], "open": ["s004", "s005"]}
    check(masked.sum(), plain(SEVEN, list(SEVEN)[2:]), [2, 3, 4, 5, 6])


@pytest.mark.parametrize("step", ["keys", "prepare", "-prepare"])
def test_a_sum_of_all_is_of_all_or_none(step: str, tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN)
    masked.away = {step: ["s003"]}
    assert masked.sum(0, "prepare") is None
    masked.away = {}
    check(masked.sum(0, "prepare"), plain(SEVEN), list(range(7)))


def test_a_site_that_comes_late_hears_first_what_all_have_agreed_on(tmp_path: Path) -> None:
    masked, greeted = Masked(tmp_path, SEVEN), list[int]()
    late = masked.sites["s002"].contribute
    unprepared = encode({"round": 1, "client": "s002", "error": "late", "unprepared": True}, {})
    masked.sites["s002"].contribute = lambda request: late(request) if greeted else unprepared
    masked.server.greeted_by(lambda places: (greeted.extend(places), places)[1], "")
    check(masked.sum(), plain(SEVEN), list(range(7)))
    assert greeted == [2]


def test_messages_that_do_not_fit_are_zeros_and_counted(tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN, mode="shares")
    masked.values["s001"] = {**SEVEN["s001"], "x": SEVEN["s001"]["x"] * torch.inf}
    masked.values["s002"] = {**SEVEN["s002"], "y": SEVEN["s002"]["y"] * 1e20}
    masked.flags = {"s003": {"diverged": True}, "s004": {"refused": True}, "s005": {"reported": False}}
    total = masked.sum()
    check(total, plain(SEVEN, ["s000", "s003", "s006"]), list(range(7)))
    assert total is not None
    assert (total.reported, total.diverged, total.refused) == (3, 1, 3)


@pytest.mark.parametrize("mode", MODES)
def test_who_is_not_to_report_adds_zeros_and_three_are_needed(mode: Mode, tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN, mode=mode)
    few, none, three = (list(SEVEN)[:most] for most in (2, 0, 3))
    assert masked.sum(1, adding=few) is None
    assert not masked.rows() or mode == "shares"
    check(masked.sum(2, adding=three), plain(SEVEN, list(SEVEN)[:3]), list(range(7)))
    total = masked.sum(3, adding=none)
    assert total is not None
    assert (total.reported, float(total.sums["x"].abs().sum())) == (0, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_a_quorum_is_of_those_who_are_to_report(mode: Mode, tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN, mode=mode, quorum=5)
    assert masked.sum(1, adding=list(SEVEN)[:4]) is None
    check(masked.sum(2, adding=list(SEVEN)[:5]), plain(SEVEN, list(SEVEN)[:5]), list(range(7)))


@pytest.mark.parametrize("mode", MODES)
def test_groups_have_sums_of_their_own(mode: Mode, tmp_path: Path) -> None:
    masked = Masked(tmp_path, SEVEN, mode=mode, groups=2)
    groups = groups_of(list(SEVEN), 2, HANDSHAKE.study)
    assert sorted(map(len, groups)) == [3, 4]
    tensors = {"shared": torch.zeros(2)}
    totals = masked.server.ask_groups({"kind": "round", "round": 1}, tensors, masked.form)
    for names, total in zip(groups, totals, strict=True):
        check(total, plain(SEVEN, names), sorted(list(SEVEN).index(name) for name in names))
    check(masked.sum(0, "prepare"), plain(SEVEN), list(range(7)))
    check(masked.sum(2, "scores"), plain(SEVEN), list(range(7)))
    for lost in (0, 1):  # of four, three may sign; of three all must
        masked.away = {"round": [groups[lost][0]]}
        tensors = {"shared": torch.full((2,), 1.0 + lost)}
        totals = masked.server.ask_groups({"kind": "round", "round": 3 + lost}, tensors, masked.form)
        opened = mode == "shares" and len(groups[lost]) == 4
        assert [total is not None for total in totals] == ([opened, True] if lost == 0 else [True, opened])


def test_fewer_than_three_sites_have_no_masked_sum(tmp_path: Path) -> None:
    for values, groups in ((numbers(2), 0), (numbers(5), 2)):
        with pytest.raises(UserError, match="masked sums need .*three"):
            Masked(tmp_path, values, groups=groups)


def test_what_is_not_masked_reaches_the_site_only_where_it_asks_for_no_sum(tmp_path: Path) -> None:
    site = Masked(tmp_path, SEVEN).sites["s000"]
    for kind in ("hello", "finish", "ended", "prepare", "round", "scores", "sums", "calibration"):
        reply = header(site.answer(encode(
            {"kind": kind, "round": 1, "client": "s000", "handshake": HANDSHAKE.table()}, {}
        )))  # fmt: skip
        assert reply.get("refused") == (None if kind in ("hello", "finish", "ended") else "policy")
    site.patient = True
    assert (site.site, site.inner.patient, site.desk.patient) == ("the site behind", True, True)
