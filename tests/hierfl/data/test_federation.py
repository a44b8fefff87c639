"""Federations: batches, tables, standardisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.federations import blobs

from hierfl import Federation, UserError
from hierfl.data.arrays import make_pool
from hierfl.data.chunk_data import ChunkData
from hierfl.data.datasets.registry import load
from hierfl.data.index_sets import IndexSets
from hierfl.data.padding import buckets


def test_digits_are_embedded_and_always_the_same(tmp_path: Path) -> None:
    a, b = load("digits", tmp_path), load("digits", tmp_path)
    assert a.digest() == b.digest()
    assert a.x_train.shape == (1437, 1, 8, 8)
    assert a.x_test.shape == (360, 1, 8, 8)
    assert np.bincount(a.y_test).min() >= 34


def test_a_batch_holds_exactly_the_clients_examples(small: Federation) -> None:
    batch = small.batch([2, 0, 4])
    assert batch.x.shape == (3, 23, 4)
    assert batch.n.tolist() == [2, 23, 14]
    for row, j in enumerate([2, 0, 4]):
        n = len(small.train[j])
        assert batch.mask is not None
        assert batch.mask[row].sum() == n
        assert batch.mask[row, :n].all()
        assert torch.equal(batch.x[row, :n], small.x[small.train[j]])
        assert torch.equal(batch.y[row, :n], small.y[small.train[j]])


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_buckets_cover_every_row_once_and_pad_little(sizes: list[int]) -> None:
    sizes = sorted(sizes, reverse=True)
    cut = list(buckets(sizes))
    assert [r for first, last in cut for r in range(first, last)] == list(range(len(sizes)))
    for first, last in cut:
        padding = sum(sizes[first] - n for n in sizes[first:last])
        assert padding <= 512 + sum(sizes[first:last]) / 4 + 1


def test_examples_are_the_same_whether_a_bucket_lies_ready_or_is_put_together() -> None:
    sizes = [900, 870, 200, 190, 3]
    fed = blobs(sizes)
    examples = ChunkData(fed, range(5))
    cut = [list(range(first, last)) for first, last in buckets(sizes)]
    assert len(cut) > 1  # or nothing would be seen here
    inputs, _ = examples.data
    for rows in [*cut, [4], [0, 3], [3, 0, 4]]:
        batch, wanted = examples.batch(rows), fed.batch(rows)
        for got, want in zip((batch.x, batch.y, batch.n), (wanted.x, wanted.y, wanted.n), strict=True):
            assert torch.equal(got, want)
        assert batch.mask is wanted.mask is None or torch.equal(batch.mask, wanted.mask)  # type: ignore[arg-type]
        assert (batch.x.data_ptr() == inputs[int(examples.first(rows)[0])].data_ptr()) == (rows in cut)


def test_padding_is_left_out_where_rows_are_equally_long() -> None:
    index, mask = IndexSets([torch.arange(3), torch.arange(3)]).padded([0, 1])
    assert mask is None
    assert index.shape == (2, 3)
    index, mask = IndexSets([torch.arange(0), torch.arange(0)]).padded([0, 1])
    assert index.tolist() == [[0], [0]]
    assert mask is not None
    assert not mask.any()


def test_a_row_is_padded_with_its_own_first_index() -> None:
    sets = IndexSets([torch.tensor([7, 8, 9]), torch.tensor([4]), torch.tensor([], dtype=torch.long)])
    index, mask = sets.padded([1, 2, 0])
    assert index.tolist() == [[4, 4, 4], [0, 0, 0], [7, 8, 9]]
    assert mask is not None
    assert mask.tolist() == [[True, False, False], [False] * 3, [True] * 3]


def test_index_sets_are_what_they_were_made_of() -> None:
    common = torch.tensor([5, 2, 11])
    own = [common, torch.tensor([3]), torch.tensor([], dtype=torch.long), common]
    sets = IndexSets(own)
    assert len(sets.flat) == 4  # the set that two clients have lies there once
    assert [indices.tolist() for indices in sets] == [indices.tolist() for indices in own]
    assert [indices.tolist() for indices in sets[1:]] == [indices.tolist() for indices in own[1:]]
    some = sets.select([3, 1]).to(torch.device("cpu"))
    assert (some.sizes, [indices.tolist() for indices in some]) == ([3, 1], [[5, 2, 11], [3]])
    with pytest.raises(IndexError):
        sets[4]


def test_images_stay_uint8_until_batched_and_are_standardised_per_channel() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(80, 5, 6, 3), dtype=np.uint8)
    x[..., 1] //= 4
    pool = make_pool("images", x[:60], np.arange(60) % 2, x[60:], np.arange(20) % 2)
    assert pool.x_train.shape == (60, 3, 5, 6)  # channels first
    fed = Federation.from_pool(pool, 2, "equal", validation=0.0)
    assert fed.x.dtype == torch.uint8
    seen = fed.batch([0, 1]).x.flatten(0, 1)
    assert seen.dtype == torch.float32
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(seen.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-4)
    image = fed.examples(fed.train[0][:1])[0]
    raw = pool.x_train[int(fed.train[0][0])] / 255
    assert np.allclose(image[0], (raw - pool.mean) / pool.std, atol=1e-5)


def test_common_test_sets_stay_one_tensor_when_moved() -> None:
    pool = make_pool("p", np.zeros((40, 2)), np.arange(40) % 2, np.zeros((10, 2)), np.arange(10) % 2)
    fed = Federation.from_pool(pool, 4, "equal", validation=0.0)
    fed = replace(fed, test=[fed.global_test] * 4)
    moved = fed.to(dtype=torch.float64)
    assert moved.batch([0]).x.dtype == torch.float64
    assert len(moved.indices("test").flat) == len(fed.global_test)
    assert moved.sizes("test") == [len(fed.global_test)] * 4


def test_selecting_keeps_ids_with_their_data(small: Federation) -> None:
    other = small.select([5, 1])
    assert list(other.ids) == ["place-05", "place-01"]
    assert torch.equal(other.train[0], small.train[5])


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": ["b", "a", "b", "a", "c", "c"] * 5,
            "x": np.arange(30.0),
            "z": 1,
            "y": np.linspace(0, 1, 30),
            "kind": ["u", "v"] * 15,
        }
    )


def test_from_frame_takes_columns_as_they_are() -> None:
    fed = Federation.from_frame(frame(), client="site", y="y", x=["x", "z"], test=0.2, standardise=False)
    assert list(fed.ids) == ["a", "b", "c"]
    assert fed.task == "regression"
    assert fed.sizes("train") == [8, 8, 8]
    assert fed.sizes("test") == [2, 2, 2]
    x, y = fed.to(dtype=torch.float64).examples(torch.cat([fed.train[0], fed.test[0]]))
    assert set(map(tuple, x.tolist())) == {(float(i), 1.0) for i in range(30) if frame().site[i] == "a"}
    assert torch.allclose(y.double(), x[:, 0] / 29)


def test_from_frame_numbers_labels_in_sorted_order() -> None:
    fed = Federation.from_frame(frame(), client="site", y="kind", x=["x"], test=0.0, standardise=False)
    assert fed.task == "classification"
    assert fed.classes == 2
    x, y = fed.examples(torch.cat(list(fed.train)))
    assert ((x[:, 0] % 2) == y).all()


def test_clients_seen_once_are_fine_in_a_regression() -> None:
    fed = Federation.from_frame(frame().iloc[:5], client="site", y="y", x=["x"], test=0.2)
    assert fed.sizes() == [2, 2, 1]
    with pytest.raises(UserError, match="client c has 1 training example, fewer than 2"):
        Federation.from_frame(frame().iloc[:5], client="site", y="kind", x=["x"], test=0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": "place"}, "unknown column 'place'; known: site, x, z, y, kind"),
        ({"x": ["x", "q"]}, "unknown column 'q'"),
        ({"x": ["when"]}, "'when' holds no numbers; make it numbers first"),
        ({"x": ["x", "site"]}, "'site' names the clients"),
        ({"x": None}, "'count' numbers the rows"),
        ({"x": []}, "at least one input"),
        ({"x": ["gap"]}, "'gap' has 1 missing value"),
        ({"y": "kind", "task": "regression"}, "response of a regression"),
        ({"test": 1.5}, "test must be a fraction"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_in_one_line(change: dict, words: str) -> None:
    df = frame().assign(gap=[np.nan] + [1.0] * 29, when=pd.Timestamp("2026-01-01"), count=range(30))
    if "x" in change and change["x"] is None:
        df = df.drop(columns="gap")
    with pytest.raises(UserError, match=words):
        Federation.from_frame(df, **{"client": "site", "y": "y", "x": ["x"], **change})


def test_federations_that_make_no_sense_are_refused(small: Federation) -> None:
    import dataclasses

    with pytest.raises(UserError, match="at least one client"):
        dataclasses.replace(small, ids=[], train=[], test=[], validation=[])
    with pytest.raises(UserError, match="must differ"):
        dataclasses.replace(small, ids=["a"] * 7)
    with pytest.raises(UserError, match="fewer than 2"):
        blobs([4, 1])


def test_integer_names_are_names_and_labels_are_kept() -> None:
    """A hospital called 1 is not the second hospital; columns of a prediction follow the sorted labels."""
    from hierfl.inference import fit
    from hierfl.models import FedPer
    from hierfl.nn.networks.build import architecture

    df = frame().assign(site=np.arange(30) % 3 + 1, x=np.linspace(-1, 1, 30))
    df["kind"] = np.where(df.site == 2, "yes", np.where(df.index < 15, "no", "yes"))
    fed = Federation.from_frame(df, client="site", y="kind", x=["x"], test=0.0, standardise=True)
    assert list(fed.ids) == ["1", "2", "3"]
    assert fed.about["labels"] == ["no", "yes"]
    run = fit(FedPer(architecture("linear", fed), lr=0.1), fed, rounds=20, progress=False)
    table = run.predict(df[["z", "x"]].assign(x=-1.0), client=2)
    assert table["p(yes)"][0] > 0.9  # hospital 2 always says yes
    assert run.predict(df[["x"]], client=1)["p(no)"][0] > 0.5
    with pytest.raises(UserError, match="no client 0"):
        run.predict(df[["x"]], client=0)
    with pytest.raises(UserError, match="lacks column 'x'"):
        run.predict(df[["z"]], client=1)
    assert len(repr(fed)) < 200
    assert len(repr(run)) < 300


def test_standardising_a_table() -> None:
    df = frame().assign(x=np.arange(30) * 7.0 + 60)
    fed = Federation.from_frame(df, client="site", y="y", x=["x", "z"], test=0.2, standardise=True)
    x = fed.to(dtype=torch.float64).examples(torch.cat(list(fed.train)))[0]
    assert torch.allclose(x.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12)
    assert abs(x[:, 0].std(unbiased=False) - 1) < 1e-12
    assert (x[:, 1] == 0).all()  # a constant column stays harmless


def test_one_large_label_does_not_eat_the_memory() -> None:
    with pytest.raises(UserError, match="lacks 3"):
        make_pool("p", np.zeros((4, 2)), np.array([0, 1, 2, 10**12]), np.zeros((1, 2)), np.array([0]))


def test_clients_and_labels_have_one_spelling() -> None:
    df = frame()
    dirty = df.assign(
        site=[f"{v} " if k % 4 == 1 else v for k, v in enumerate(df.site)],
        kind=[str(v).upper() if k % 5 == 2 else v for k, v in enumerate(df.kind)],
    )
    how = {"client": "site", "y": "kind", "x": ["x"]}
    with pytest.raises(UserError, match="column 'site' holds 'a' and 'a '; .*spellings='join' or 'keep'"):
        Federation.from_frame(dirty, **how)
    with pytest.raises(UserError, match="column 'kind' holds"):
        Federation.from_frame(dirty, **how, spellings="site=join")
    federation, wanted = Federation.from_frame(dirty, **how, spellings="join"), Federation.from_frame(df, **how)
    assert (federation.ids, federation.about["labels"], federation.digest()) == (
        wanted.ids,
        wanted.about["labels"],
        wanted.digest(),
    )
    kept = Federation.from_frame(dirty, **{**how, "y": "y"}, spellings="keep")
    assert kept.clients > wanted.clients
