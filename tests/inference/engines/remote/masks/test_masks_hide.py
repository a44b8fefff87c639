"""What a server sees of masked sums: uniform integers, of which the sum alone says something; nothing is used twice."""

from __future__ import annotations

import base64
import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_sites import Masked, Memory, altered, numbers, plain

from hierfl.inference.engines.remote.masks import recovery, streams
from hierfl.inference.engines.remote.masks import site as masked_site
from hierfl.inference.engines.remote.masks.layout import Layout
from hierfl.inference.engines.remote.masks.parts import Contribution, Mode
from hierfl.inference.engines.remote.masks.past import PAST_FILE
from hierfl.inference.engines.remote.masks.presence import TOLD_BYTES
from hierfl.inference.engines.remote.masks.words import Words
from hierfl.inference.engines.remote.wire import decode, encode, header

FOUR = numbers(4)
MODES: list[Mode] = ["whole", "shares"]


def row(answer: bytes) -> np.ndarray:
    """The integers of a masked answer."""
    return decode(answer)[1]["masked"].numpy().view(np.uint64)


@pytest.mark.parametrize(
    ("values", "other"),
    [
        ([1.5, -2.25, 3e7, 2.0**-30], [3e7, 2.0**-30, 1.5, -2.25]),
        ([0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ([3.0, -1.0, 7.0, 0.0], [-1e6, 1e6, 8.0, 1.0]),
        ([2.0**20 - 1, 1.0, 0.0, 0.0], [2.0**20, 0.0, 2.0**-35, -(2.0**-35)]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_data_of_equal_sum_give_exchangeable_transcripts(
    values: list[float], other: list[float], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the masks were with one data set, others as likely give the same transcript with another one.

    Masks of pairs are uniform and independent. The bijection moves the masks of neighbours by what the data sets
    differ in so far; the last ones need no move, for the sums are equal: as integers with carries, not digit by digit.
    """
    names, layout = list(FOUR), Layout({"x": ((6,), dtype)}, 4)
    words = layout.words
    rows = [
        {
            name: layout.row(Contribution(layout.form, {"x": torch.full((6,), value, dtype=dtype)}, reported=True))
            for name, value in zip(names, data, strict=True)
        }
        for data in (values, other)
    ]
    draw = np.random.default_rng(0)
    masks = {(a, b): draw.integers(0, 2**64, layout.size, np.uint64) for a in names for b in names if a < b}
    moved, ahead = {pair: mask.copy() for pair, mask in masks.items()}, np.zeros(layout.size, np.uint64)
    for a, b in itertools.pairwise(names):
        words.add(ahead, rows[0][a])
        words.add(ahead, rows[1][a], minus=True)
        words.add(moved[a, b], ahead)

    def transcript_of(data: dict[str, np.ndarray], keys: dict[tuple[str, str], np.ndarray]) -> list[np.ndarray]:
        transcript, by_key = [], {f"{a}{b}".encode(): mask for (a, b), mask in keys.items()}
        monkeypatch.setattr(streams, "pair_key", lambda secret, context, a, b: "".join(sorted((a, b))).encode())
        monkeypatch.setattr(
            streams, "add_stream", lambda total, key, words, minus: words.add(total, by_key[key], minus=minus)
        )
        for name in names:
            total = data[name].copy()
            streams.add_pairs(total, name, [(b, b"") for b in names if b != name], "a context", words)
            transcript.append(total)
        return transcript

    first, second = transcript_of(rows[0], masks), transcript_of(rows[1], moved)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(rows[0][names[0]], rows[1][names[0]])


@pytest.mark.parametrize("mode", MODES)
def test_two_samples_of_a_server_s_view_do_not_differ(mode: Mode, tmp_path: Path) -> None:
    """A two-sample test of all that it sees, by each byte: 3,000 numbers under masks of two data sets of equal sum.

    Every number has masks of its own. Without masks the same test tells the data sets apart at once.
    """
    views: list[list[np.ndarray]] = [[], []]
    for plainly in (False, True):
        for k, data in enumerate(([1.5, -2.25, 3e7, 2.0], [3e7, 1.5, 2.0, -2.25])):
            values = {n: {"x": torch.full((3000,), v, dtype=torch.float64)} for n, v in zip(FOUR, data, strict=True)}
            masked = Masked(tmp_path / f"{plainly}{k}", values, mode=mode)
            layout = Layout(masked.form, len(FOUR))
            if plainly:
                rows = [layout.row(Contribution(masked.form, values[name], reported=True)) for name in FOUR]
            else:
                assert masked.sum() is not None
                rows = [row(answer) for _, answer in masked.rows()]
            pairs = [first - other for first, other in itertools.combinations(rows, 2)]
            views[k] = [seen[3:].reshape(3000, -1).view(np.uint8) for seen in (*rows, *pairs, sum(rows[1:], rows[0]))]
        chi2 = []
        for first, other in zip(*views, strict=True):
            for a, b in zip(first.T, other.T, strict=True):
                counts = np.array([np.bincount(of // 16, minlength=16) for of in (a, b)], float)
                seen = counts[:, counts.sum(0) > 0]
                expected = seen.sum(0) / 2
                chi2.append(((seen - expected) ** 2 / expected).sum())  # chi-square of up to 15 degrees of freedom
        # Of 264 tests one is above 70 once in a million.
        assert (max(chi2) > 1000) == plainly
        assert (max(chi2) < 70) == (not plainly)


@pytest.mark.parametrize("mode", MODES)
def test_all_answers_but_one_are_uniform_together(mode: Mode, tmp_path: Path) -> None:
    """Their bytes, and those of differences and sums of them, by chi-square at four standard deviations."""
    values = {name: {"x": torch.full((4000,), 1.0 + index, dtype=torch.float64)} for index, name in enumerate(FOUR)}
    masked = Masked(tmp_path, values, mode=mode)
    assert masked.sum() is not None
    rows = [row(answer) for _, answer in masked.rows()]
    shown = [*rows, rows[0] - rows[1], rows[0] + rows[1], rows[0] + rows[1] + rows[2]]
    for seen in shown:
        counts = np.bincount(seen.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi - 255) < 4 * np.sqrt(2 * 255)
    whole = np.bincount(Layout(masked.form, len(FOUR)).words.added(rows).view(np.uint8), minlength=256)
    assert (whole.max() > 0.5 * whole.sum()) == (mode == "whole")  # with shares a sum of all is masked, too


def test_no_key_of_a_mask_occurs_in_two_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes] = []
    for module in (streams, recovery, masked_site):
        real = module.add_stream

        def noted(total: np.ndarray, key: bytes, words: Words, *, minus: bool = False, real: Any = real) -> None:
            used.append(key)
            real(total, key, words, minus=minus)

        monkeypatch.setattr(module, "add_stream", noted)
    masked = Masked(tmp_path, FOUR, mode="shares", slots=2)
    for number in range(1, 6):
        for kind in ("round", "scores", "sums"):
            assert masked.sum(number, kind) is not None
    counts = Counter(used)
    # of 15 questions six masks of pairs, at both ends; of ten four masks of one's own, taken away by the server
    assert len(counts) == 15 * 6 + 10 * 4
    assert set(counts.values()) == {2}


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_folder_uses_no_mask_twice(mode: Mode, tmp_path: Path) -> None:
    """The record is outside of the folder, as at a real site; the same answer may be given again."""
    masked = Masked(tmp_path, FOUR, mode=mode)
    masked.claims["s001"] = Memory()
    masked.sites["s001"] = masked.site("s001")
    assert masked.sum(1) is not None
    shutil.copytree(tmp_path / "s001", tmp_path / "copy")
    assert masked.sum(2) is not None
    request = next(q for name, q, _ in reversed(masked.transcript) if name == "s001" and header(q)["kind"] == "round")
    given = next(a for name, q, a in masked.transcript if q == request)
    restored = masked.site("s001", tmp_path / "copy")
    assert restored.answer(request) == given
    for change in ("values", "broadcast"):
        restored = masked.site("s001", tmp_path / "copy")
        if change == "values":
            masked.values["s001"] = {**FOUR["s001"], "n": torch.tensor(1000)}
        head, tensors = decode(request)
        other = request if change == "values" else encode(head, {"shared": tensors["shared"] + 1.0})
        reply = header(restored.answer(other))
        if mode == "shares" or change == "values":
            assert reply.get("refused") == "answered"
        masked.values["s001"] = FOUR["s001"]
    if mode == "shares":  # a list was signed: the copy signs no other
        sign = next(q for name, q, _ in reversed(masked.transcript) if name == "s001" and header(q)["kind"] == "sign")
        listed = header(sign)["masks"]["list"]
        two = base64.b64encode(base64.b64decode(header(sign)["masks"]["told"])[: 2 * TOLD_BYTES]).decode()
        fewer = altered(sign, list={**listed, "survivors": listed["survivors"][:3]}, told=two)
        restored.answer(request)
        assert header(restored.answer(fewer)).get("refused") == "answered"
        assert "signature" in header(restored.answer(sign))


def test_a_site_that_has_lost_its_folder_and_a_server_that_has_get_other_keys(tmp_path: Path) -> None:
    for mode in MODES:
        masked = Masked(tmp_path / mode, FOUR, mode=mode)
        assert masked.sum(1) is not None
        shutil.rmtree(tmp_path / mode / "s001")
        masked.sites["s001"] = masked.site("s001")
        total = masked.sum(2)
        assert total is not None
        assert total.clients == ([0, 1, 2, 3] if mode == "whole" else [0, 2, 3])
        for kept in (tmp_path / mode / "server").iterdir():
            if kept.name != PAST_FILE:
                kept.unlink()
        masked.restart()
        total = masked.sum(3)
        assert total is not None
        assert torch.allclose(total.sums["x"], plain(FOUR)["x"], rtol=1e-14)


def test_a_site_that_loses_its_keys_again_and_again_voids_a_sum_of_all(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR)

    def lost(name: str, request: bytes) -> bytes:
        if name == "s001" and header(request)["kind"] == "round":
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            masked.sites[name] = masked.site(name)
        return request

    masked.change = lost
    assert masked.sum() is None
    assert len(masked.rows()) == 3 * 4


def test_secrets_of_past_questions_are_gone(tmp_path: Path) -> None:
    masked = Masked(tmp_path, FOUR, mode="shares")
    for number in (1, 2, 3):
        assert masked.sum(number) is not None
    site, text = masked.sites["s000"], (tmp_path / "s000" / "epoch.json").read_text()
    assert sorted(site.ring.slots) == list(range(2, 8))
    assert site.ring.slots[2].key in text
    assert (tmp_path / "s000" / "epoch.json").stat().st_mode & 0o077 == 0
    first = next(q for name, q, _ in masked.transcript if name == "s000" and header(q)["kind"] == "open")
    assert header(site.answer(first))["refused"] == "answered"
