"""Names of clients that are given in Python, or in arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import Federation
from hierfl.data.client_names import client_names, in_words, refuse_totals
from hierfl.data.formula.federate import from_formula
from hierfl.data.npz import load_npz
from hierfl.errors import UserError


def test_a_last_row_of_totals_is_no_client() -> None:
    df = pd.DataFrame({"y": np.arange(9.0) ** 2 % 7, "x": np.arange(9) % 4, "site": [*"aaaabbbb", "Total"]})
    words = "column 'site' names 'Total' in the last row alone"
    with pytest.raises(UserError, match=words):
        from_formula(df, "y ~ x + (1 | site)")
    with pytest.raises(UserError, match=words):
        Federation.from_frame(df, client="site", y="y", x=["x"])
    for names in ([*"aaabbb", "Total", "Total"], [*"aaa", "Total", *"bbb"], [*"aaabbb", "Totally"], ["Total"]):
        refuse_totals(np.array(names), "client")


def test_masked_names_are_no_names() -> None:
    names = np.ma.masked_array([1, 1, 2], [0, 1, 0])
    with pytest.raises(UserError, match="client has 1 masked values"):
        client_names(names, "client")
    assert client_names(np.ma.masked_array([1, 2], [0, 0]), "client").tolist() == ["1", "2"]


def test_tables_of_ones_own_keep_their_types() -> None:
    df = pd.DataFrame({"y": np.random.default_rng(0).normal(size=12), "site": np.repeat([10, 2, 30], 4)})
    for site in (df.site, df.site.astype(str), df.site.astype("category"), df.site.astype("Int64")):
        federation, _ = from_formula(df.assign(site=site), "y ~ 1 + (1 | site)")
        assert federation.ids == ["10", "2", "30"]
    for site in (df.site.astype(float), df.site.astype(object).where(df.index > 3, 1.5)):
        with pytest.raises(UserError, match="clients are named by text or whole numbers|of several types"):
            from_formula(df.assign(site=site), "y ~ 1 + (1 | site)")
        with pytest.raises(UserError, match="clients are named by text or whole numbers"):
            Federation.from_frame(df.assign(site=site), client="site", y="y", x=["y"])
    with pytest.raises(UserError, match="holds '1' as int and as str"):
        client_names([1, "1"], "client")
    twice = pd.concat([df, df.rename(columns={"site": "y"})], axis=1)
    with pytest.raises(UserError, match="two columns called 'y'"):
        from_formula(twice, "y ~ 1 + (1 | site)")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["01", "1", "1.0"], ["01", "1", "1.0"]),
        ([True, False], ["True", "False"]),
        (np.array([b"a", "é".encode()]), ["a", "é"]),
        (np.array(["a", "b" * 150], dtype=object), ["a", "b" * 150]),
        (np.array([2**63 - 1, 2**63 - 2]), ["9223372036854775807", "9223372036854775806"]),
    ],
)
def test_names_are_text_whatever_holds_them(given: object, names: list[str]) -> None:
    assert client_names(given, "client").tolist() == names


@pytest.mark.parametrize(
    "given", [[1.0, 2.0], [np.nan], [None], ["a\0"], ["a\n"], ["\ud800"], [""], ["x" * 201], [b"\xff"], [(1, 2)], [1j]]
)
def test_what_is_no_name_is_refused(given: list[object]) -> None:
    with pytest.raises(UserError, match="client"):
        client_names(np.array(given, dtype=object) if isinstance(given[0], str) else given, "client")


def test_arrays_that_name_clients_by_decimals_are_refused(tmp_path: Path) -> None:
    x, y = np.ones((6, 2)), np.arange(6) % 2
    for who, words in [(np.arange(6.0), "named by text or whole numbers"), (np.array(["a\x1b"] * 6), "control")]:
        np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=who, client_test=who)
        with pytest.raises(UserError, match=words):
            load_npz(tmp_path / "d.npz")


def test_inputs_without_features_are_refused(tmp_path: Path) -> None:
    x, y = np.ones((6, 0)), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match=r"x_train has shape \(6, 0\): an input without features says nothing"):
        load_npz(tmp_path / "d.npz")
    with pytest.raises(UserError, match="without features"):
        Federation.from_arrays(x, y, ["a", "b"] * 3)


@pytest.mark.parametrize(
    ("names", "words"), [(["0"], "client 0"), (["h1"], "h1"), (["0", "17"], "clients 0 + 17"), (["Łódź"], "Łódź")]
)
def test_a_number_is_named_as_a_client(names: list[str], words: str) -> None:
    assert in_words(*names) == words
