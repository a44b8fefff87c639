"""Splits: who gets what, for every way of cutting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.federations import image_pool

from hierfl import UserError
from hierfl.data.arrays import make_pool
from hierfl.data.partition.hold_out import hold_out
from hierfl.data.partition.registry import SPLITS
from hierfl.data.partition.spec import parse
from hierfl.data.partition.split_pool import split_pool

CASES = [
    ("label-skew:5", 8), ("label-skew-equal:5", 8), ("label-skew-unbalanced:3", 9), ("dirichlet:0.5,redraw", 6),
    ("dirichlet:0.3,capped", 6),
    ("classes:2", 10), ("shards:2", 10), ("random-slicing,redraw", 7), ("equal", 7), ("iid", 7),
    ("pathological:3,each=9", 6), ("few-images:3,percent=50", 6),
    ("concept-drift", 6), ("concept-drift-equal", 6), ("concept-drift-unbalanced", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "clients"), CASES)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_no_training_example_is_given_twice_and_tests_fit_the_client(name: str, clients: int, seed: int) -> None:
    pool = image_pool(fine=3)
    parts = split_pool(pool, clients, name, seed)
    assert len(parts.train) == len(parts.test) == len(parts.ids) == clients
    given_away = np.concatenate(parts.train)
    assert len(np.unique(given_away)) == len(given_away)
    everything = len(pool.y_train) + (len(pool.y_test) if name.startswith("dirichlet") else 0)
    if name.startswith("dirichlet"):
        given_away = np.concatenate([given_away, *parts.test])
        assert len(np.unique(given_away)) == everything
    elif name.startswith("pathological"):
        given_away = np.concatenate([given_away, *parts.test])
        assert len(np.unique(given_away)) == len(given_away) == 27 * clients
    elif name.startswith("few-images"):
        sizes = sorted(map(len, parts.train))
        assert set(sizes[:3]) <= {5, 10}
        assert sizes[3:] == [25, 25, 25]
    elif not name.startswith("classes"):
        assert len(given_away) == everything  # nothing is lost
    y = np.concatenate([pool.y_train, pool.y_test])
    for train, test in zip(parts.train, parts.test, strict=True):
        assert not set(train) & set(test)
        assert len(test)
        if name.split(":")[0] in (
            "label-skew",
            "label-skew-equal",
            "label-skew-unbalanced",
            "classes",
            "shards",
        ):
            assert set(y[train]) == set(y[test])


@pytest.mark.parametrize(("name", "clients"), CASES)
def test_a_split_is_a_function_of_its_seed(name: str, clients: int) -> None:
    pool = image_pool(fine=3)
    first, again, other = (split_pool(pool, clients, name, seed) for seed in (3, 3, 4))
    assert all((a == b).all() for a, b in zip(first.train, again.train, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first.train, other.train, strict=True))


def test_label_skew_deals_complementary_groups_of_equal_size() -> None:
    """pFedVEM's public code: the clients of a group hold every label once, and share one slice of each."""
    pool = image_pool(2000)
    parts = split_pool(pool, 8, "label-skew:5", 0)
    for first in range(0, 8, 2):
        labels = [set(pool.y_train[parts.train[j]]) for j in (first, first + 1)]
        assert labels[0] | labels[1] == set(range(10))
        assert len(labels[0]) == len(labels[1]) == 5
        counts = [np.bincount(pool.y_train[parts.train[j]], minlength=10) for j in (first, first + 1)]
        assert len(set((counts[0] + counts[1]).tolist())) == 1  # one slice of every class
    assert len({len(t) for t in parts.train}) == 4


def test_unbalanced_label_skew_cuts_each_class_for_itself() -> None:
    parts = split_pool(image_pool(2000), 8, "label-skew-unbalanced:5", 0)
    y = image_pool(2000).y_train
    assert any(len(set(np.bincount(y[t])[np.unique(y[t])])) > 1 for t in parts.train)


def test_shared_cuts_of_unequal_classes_are_taken_by_quantile() -> None:
    y = np.repeat(np.arange(4), [40, 80, 120, 160])
    x = np.zeros((400, 2))
    pool = make_pool("unequal", x, y, x[::10], y[::10])
    for seed in range(20):
        parts = split_pool(pool, 6, "label-skew:2", seed)
        for train in parts.train:
            shares = [(y[train] == k).sum() / (y == k).sum() for k in set(y[train])]
            assert max(shares) - min(shares) < 1 / 40 + 1e-9
        assert sum(map(len, parts.train)) == 400


def test_classes_gives_exactly_equal_shares() -> None:
    pool = image_pool(1000)
    parts = split_pool(pool, 10, "classes:3", 0)
    for train in parts.train:
        counts = np.bincount(pool.y_train[train])
        assert (counts > 0).sum() == 3
        assert set(counts) - {0} == {26}  # 80 of each label, 3 clients share it


def test_equal_differs_by_at_most_one_per_client_and_label() -> None:
    pool = image_pool(600)
    parts = split_pool(pool, 7, "equal", 0)
    counts = np.array([np.bincount(pool.y_train[t], minlength=10) for t in parts.train])
    assert np.ptp(counts, axis=0).max() <= 1


def test_concept_drift_gives_one_subclass_of_every_class_in_complementary_groups() -> None:
    pool = image_pool(1200, fine=3)
    parts = split_pool(pool, 6, "concept-drift", 0)
    for first in (0, 3):
        fine = [set(pool.fine_train[parts.train[j]]) for j in range(first, first + 3)]
        assert all(len(f) == 10 and {c // 3 for c in f} == set(range(10)) for f in fine)
        assert set.union(*fine) == set(range(30))
    offset = len(pool.y_train)
    for train, test in zip(parts.train, parts.test, strict=True):
        assert set(pool.fine_train[train]) == set(pool.fine_test[test - offset])


def test_small_beta_is_more_unequal_than_large() -> None:
    pool = image_pool(3000)

    def concentration(beta: float) -> float:
        parts = split_pool(pool, 5, f"dirichlet:{beta},redraw", 0)
        y = np.concatenate([pool.y_train, pool.y_test])
        shares = np.array([np.bincount(y[t], minlength=10) / len(t) for t in parts.train])
        return float((shares**2).sum(1).mean())

    assert concentration(0.1) > concentration(1.0) > concentration(100.0) >= 0.1


def test_a_capped_client_gets_no_later_class() -> None:
    """Dealt class by class: only the class that has taken a client past N / J may do so."""
    pool = image_pool(3000)
    y, clients = np.concatenate([pool.y_train, pool.y_test]), 6
    parts = split_pool(pool, clients, "dirichlet:0.3,capped", 1)
    own = [np.concatenate(both) for both in zip(parts.train, parts.test, strict=True)]
    counts = np.array([np.bincount(y[index], minlength=10) for index in own])
    before = counts.cumsum(1) - counts  # examples of earlier classes
    most = len(y) / clients
    assert counts.sum() == len(y)
    assert counts.sum(1).min() >= 10
    assert not counts[before >= most].any()
    assert (before >= most).any()
    with pytest.raises(UserError, match="after 1000 draws some client of 60 still has fewer than 10"):
        split_pool(image_pool(200), 60, "dirichlet:0.3,capped", 0)
    with pytest.raises(UserError, match="capped is an option without a number"):
        split_pool(pool, 6, "dirichlet:0.3,capped=2", 0)
    with pytest.raises(UserError, match="unknown split option 'capped'"):
        split_pool(pool, 6, "iid,capped", 0)


def test_redraws_happen_only_on_request_and_are_counted() -> None:
    pool = image_pool(100)
    with pytest.raises(UserError, match="dirichlet:0.1,redraw"):
        split_pool(pool, 15, "dirichlet:0.1", 0)
    parts = split_pool(pool, 8, "dirichlet:0.15,redraw", 0)
    assert parts.redraws > 0
    assert min(map(len, parts.train)) >= 2


@pytest.mark.parametrize(
    ("name", "clients", "words"),
    [
        ("label-skw:5", 8, "unknown split 'label-skw'; known: label-skew:C"),
        ("label-skew", 8, "needs a whole number above zero"),
        ("label-skew:x", 8, "got 'x'"),
        ("label-skew:-2", 8, "above zero"),
        ("label-skew:2.5", 8, "whole number"),
        ("label-skew:nan", 8, "whole number"),
        ("label-skew:3", 8, "take a divisor of 10"),
        ("label-skew:5", 7, "multiple of 2 clients"),
        ("label-skew:5", 400, "too few for the 200 clients"),
        ("label-skew-unbalanced:11", 4, "more than the 10 there are"),
        ("iid:3", 8, "takes no parameter"),
        ("iid,redo", 8, "unknown split option 'redo'"),
        ("iid", 0, "at least one client"),
        ("iid", 10**9, "more than the data allow"),
        ("concept-drift", 8, "needs subclasses"),
        ("natural", 0, "does not say whose"),
        ("shards:50", 30, "more than the 480 training examples"),
        ("classes:2", 430, "less than one example"),
        ("iid,keep=0", 8, "a share of the data above 0"),
        ("iid,keep", 8, "a share of the data above 0"),
        ("iid,keep=0.5,keep=0.5", 8, "says keep twice"),
        ("iid,redraw=2", 8, "an option without a number"),
        ("iid,each=5", 8, "unknown split option 'each=5'; known: redraw, keep=SHARE$"),
        ("pathological:3,each=x", 8, "each is a whole number above zero"),
        ("pathological:11", 8, "more than the 10 there are"),
        ("pathological:3,each=50", 8, "8 clients with 3 labels, 50 examples of each, are more than"),
    ],
)
def test_what_cannot_be_split_is_said_in_one_line(name: str, clients: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        split_pool(image_pool(), clients, name, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["dirichlet:0.5,redraw", "iid", "label-skew:5"])
def test_a_share_of_the_data(kind: str) -> None:
    """A quarter of the training and of the test examples; other ones for other seeds."""
    pool = image_pool()
    taken = []
    for seed in (0, 0, 1):
        parts = split_pool(pool, 4, f"{kind},keep=0.25", seed)
        index = np.unique(np.concatenate([*parts.train, *parts.test]))
        taken.append(index)
        train = index[index < len(pool.y_train)]
        assert len(train) == round(0.25 * len(pool.y_train))
        assert len(index) - len(train) == round(0.25 * len(pool.y_test))
    assert (taken[0] == taken[1]).all()
    assert len(np.intersect1d(taken[0], taken[2])) < 0.5 * len(taken[0])
    whole = split_pool(pool, 4, f"{kind},keep=1", 0)
    assert all((a == b).all() for a, b in zip(whole.train, split_pool(pool, 4, kind, 0).train, strict=True))


def test_pathological_clients_hold_as_many_of_each_label() -> None:
    pool = image_pool()
    y = np.concatenate([pool.y_train, pool.y_test])
    parts = split_pool(pool, 6, "pathological:3,each=10", 2)
    hands = set()
    for train, test in zip(parts.train, parts.test, strict=True):
        labels, counts = np.unique(y[np.concatenate([train, test])], return_counts=True)
        assert counts.tolist() == [10, 10, 10]
        assert len(test) == 6
        hands.add(tuple(labels.tolist()))
    assert len(hands) > 1


def test_validation_takes_a_tenth_of_each_class_that_has_ten() -> None:
    y = np.repeat([0, 1, 2], [40, 9, 10])
    train, held_out = hold_out([np.arange(59)], ["a"], y, 0.1, 0, "classification")
    assert np.bincount(y[held_out[0]], minlength=3).tolist() == [4, 0, 1]
    assert sorted([*train[0], *held_out[0]]) == list(range(59))
    few = [np.arange(59), np.arange(2), np.arange(4)]
    for index, out in zip(few, hold_out(few, ["a", "b", "c"], y, 0.2, 0, "classification", "clients")[1], strict=True):
        assert len(out) == {59: 12, 2: 0, 4: 1}[len(index)]
    train, held_out = hold_out([np.arange(59)], ["a"], y, 0.0, 0, "classification")
    assert len(held_out[0]) == 0


def test_what_is_held_out_depends_on_the_client_alone() -> None:
    y = np.zeros(60, dtype=int)
    both = hold_out([np.arange(30), np.arange(30, 60)], ["a", "b"], y, 0.2, 5, "classification")
    alone = hold_out([np.arange(30, 60)], ["b"], y, 0.2, 5, "classification")
    assert (both[1][1] == alone[1][0]).all()


def test_every_split_is_tested_and_can_be_parsed() -> None:
    tested = {parse(name)[0] for name, _ in CASES}
    assert tested == set(SPLITS) - {"natural", "domains", "domain-skew"}  # those in test_domains.py


def test_subclasses_counted_anew_in_every_label_are_told_apart() -> None:
    pool = image_pool(1200, fine=3)
    local = make_pool(
        "local", pool.x_train, pool.y_train, pool.x_test, pool.y_test,
        fine_train=pool.fine_train % 3, fine_test=pool.fine_test % 3,
    )  # fmt: skip
    for train in split_pool(local, 6, "concept-drift", 0).train:
        pairs = set(zip(local.y_train[train].tolist(), local.fine_train[train].tolist(), strict=True))
        assert len(pairs) == 10
