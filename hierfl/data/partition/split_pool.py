"""How one data set is cut into clients: label skew, concept drift, Dirichlet, shards, random slicing, ...

A split is named with its parameter, ``label-skew:5``, and with options after commas, ``dirichlet:0.3,redraw``: draw
again where a client is left with too little; ``keep=0.25``: of a quarter of the data set, drawn at random. Every draw
is keyed by the seed, so a split can be repeated anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError, unknown

if TYPE_CHECKING:
    from ..datasets.registry import Pool

Index = np.ndarray
Parts = tuple[list[Index], list[Index]]  # each client's training and test indices into the pool (train, then test)

Slices = Callable[[dict[int, Index], dict[int, list[int]], np.random.Generator], dict[int, list[Index]]]


@dataclass(frozen=True)
class Split:
    """A way of cutting: what it does, whether it takes a parameter, and the function that does it."""

    about: str
    parameter: str | None
    make: Callable[..., Parts]  # of the pool, number of clients, parameter, generator, and its options by name
    names: Callable[[Pool, list[Index]], list[str]] | None = None  # of clients, by what each is given
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """Who got what.

    Attributes:
        train, test: for each client int64 indices into the pool, training examples first.
        ids: the clients' names.
        redraws: how often the draw was repeated because a client was left with too few examples.
    """

    train: list[Index]
    test: list[Index]
    ids: list[str]
    redraws: int


def split_pool(pool: Pool, clients: int, name: str, seed: int) -> Partition:
    """Cuts ``pool`` into ``clients`` parts.

    Raises:
        UserError: for a split that is not known or cannot be made of these data.
    """
    kind, parameter, options = parse(name)
    if "keep" in options:
        kept, places = _share(pool, options.pop("keep"), seed)
        part = _split(kept, clients, kind, parameter, options, name, seed)
        return replace(part, train=[places[i] for i in part.train], test=[places[i] for i in part.test])
    return _split(pool, clients, kind, parameter, options, name, seed)


def _share(pool: Pool, share: float, seed: int) -> tuple[Pool, Index]:
    """A share of a pool's training and test examples, drawn at random, and their places in the whole of it."""
    rng, places = np.random.default_rng([seed, *b"keep"]), []
    arrays: dict[str, Any] = {}
    for part, offset in (("train", 0), ("test", len(pool.y_train))):
        n = len(getattr(pool, f"y_{part}"))
        index = np.sort(rng.permutation(n)[: max(1, round(share * n))])
        for name in ("x", "y", "fine", "client"):
            whole = getattr(pool, f"{name}_{part}")
            arrays[f"{name}_{part}"] = None if whole is None else whole[index]
        places.append(index + offset)
    return replace(pool, **arrays), np.concatenate(places)


def _split(
    pool: Pool, clients: int, kind: str, parameter: float, options: dict[str, float], name: str, seed: int
) -> Partition:
    if kind == "natural":
        names = _names(pool, clients)
        return Partition(*_natural(pool, len(names), 0.0, np.random.default_rng(seed)), names, 0)
    if clients < 1:
        raise UserError(f"a federation needs at least one client, not {clients}")
    total = len(pool.y_train) + len(pool.y_test)
    if clients > total:
        raise UserError(f"{clients} clients are more than the data allow: {pool.name} has {total} examples")
    if pool.task != "classification" and kind not in ("random-slicing", "equal", "iid"):
        raise UserError(f"split {kind} needs labels, and {pool.name} is a regression; try random-slicing, equal or iid")
    least, attempts = 2 if pool.task == "classification" else 1, 1000 if "redraw" in options else 1
    for attempt in range(attempts):
        rng = np.random.default_rng([seed, *kind.encode(), attempt])
        own = {k: v for k, v in options.items() if k in SPLITS[kind].options}
        train, test = SPLITS[kind].make(pool, clients, parameter, rng, **own)
        short = [j for j in range(clients) if len(train[j]) < least or not len(test[j])]
        if not short:
            named = SPLITS[kind].names
            ids = named(pool, train) if named else [str(j) for j in range(clients)]
            return Partition(train, test, ids, attempt)
    j = short[0]
    if attempts > 1:
        raise UserError(f"split {name}: after {attempts} draws some client of {clients} is still left with too little")
    raise UserError(
        f"split {name} leaves client {j} of {clients} with {len(train[j])} training and {len(test[j])} test examples; "
        f"fewer clients, another seed, or let it redraw: --split {name},redraw"
    )


def parse(name: str) -> tuple[str, float, dict[str, float]]:
    """Reads "kind:parameter,option,option=number,..." .

    Raises:
        UserError: for an unknown kind or option, a parameter missing, superfluous or out of range.
    """
    head, *said = name.split(",")
    kind, colon, text = head.partition(":")
    if kind not in SPLITS:
        raise unknown("split", kind, (f"{k}:{s.parameter}" if s.parameter else k for k, s in SPLITS.items()))
    options: dict[str, float] = {}
    for option in said:
        key, equals, number = option.partition("=")
        if key not in ("redraw", "keep", *SPLITS[kind].options):
            raise unknown("split option", option, ["redraw", "keep=SHARE", *(f"{k}=N" for k in SPLITS[kind].options)])
        if key in options:
            raise UserError(f"split {name} says {key} twice")
        options[key] = _option(name, key, equals, number)
    wanted = SPLITS[kind].parameter
    if wanted is None:
        if colon:
            raise UserError(f"split {kind} takes no parameter")
        return kind, 0.0, options
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    whole = wanted != "BETA"
    if not (0 < value < float("inf")) or (whole and value != int(value)):
        number = "a whole number above zero" if whole else "a number above zero"
        raise UserError(f"split {kind} needs {number}, as in {kind}:{5 if whole else 0.3}; got {text or 'none'!r}")
    return kind, value, options


def _option(split: str, key: str, equals: str, text: str) -> float:
    """The number of a split's option; 1 for one that has none."""
    if key == "redraw":
        if equals:
            raise UserError(f"redraw is an option without a number; got {split}")
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if key == "keep" and not 0 < value <= 1:
        raise UserError(f"keep is a share of the data above 0 and at most 1, as in keep=0.25; got {split}")
    if key != "keep" and not (value >= 1 and value == int(value)):
        raise UserError(f"{key} is a whole number above zero, as in {key}=100; got {split}")
    return value


def hold_out(
    train: Sequence[Index], ids: Sequence[str], y: np.ndarray, fraction: float, seed: int, task: str
) -> tuple[list[Index], list[Index]]:
    """Takes a validation set out of every client's training set.

    Classification: ``fraction`` of each class of which the client has at least ten; regression: of clients with at
    least ten rows. What is held out depends on the client alone, not on who else there is.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"validation must be a fraction in [0, 1), not {fraction}")
    if not fraction:
        return list(train), [np.empty(0, dtype=np.int64) for _ in train]
    kept, held = [], []
    for index, name in zip(train, ids, strict=True):
        rng = np.random.default_rng([seed, *b"validation", *str(name).encode()])
        groups = [index]
        if task == "classification":
            groups = [index[y[index] == label] for label in np.unique(y[index])]
        chosen = [
            rng.choice(group, max(1, round(fraction * len(group))), replace=False)
            for group in groups
            if len(group) >= 10
        ]
        out = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
        held.append(out)
        kept.append(np.setdiff1d(index, out, assume_unique=True))
    return kept, held


def rows_of(names: np.ndarray) -> dict[str, Index]:
    """Where each name stands in an array of names, (N,): in the names' order, places ascending."""
    if not len(names):
        return {}
    distinct, which = np.unique(names, return_inverse=True)
    order = np.argsort(which, kind="stable")
    return dict(zip(distinct.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True))


# -- the ways of cutting --------------------------------------------------------------------------------------------


def _deal(cells: list[list[int]], clients: int, rng: np.random.Generator) -> tuple[list[list[int]], list[int]]:
    """Deals every client one cell of each list, in complementary groups (pFedVEM's public code).

    Clients of one group share a shuffle of each list, so that together they hold every cell once. Returns each
    client's cells and each client's group.
    """
    size = len(cells[0])
    assigned: list[list[int]] = []
    for first in range(0, clients, size):
        shuffles = [rng.permutation(cell) for cell in cells]
        assigned += [[int(s[p]) for s in shuffles] for p in range(min(size, clients - first))]
    return assigned, [j // size for j in range(clients)]


def _positions(cell_of: np.ndarray, rng: np.random.Generator) -> dict[int, Index]:
    """The examples of each cell (label or subclass), shuffled."""
    return {int(c): rng.permutation(np.flatnonzero(cell_of == c)) for c in np.unique(cell_of)}


def _cut_points(n: int, parts: int, rng: np.random.Generator, what: str) -> Index:
    """parts - 1 distinct cut points, uniform on 1..n-1 (random slicing)."""
    if parts > n:
        raise UserError(f"{what} has {n} examples, too few for the {parts} clients that share it")
    return np.sort(rng.choice(np.arange(1, n), parts - 1, replace=False))


def _slices_shared(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """One set of cut points for every cell, by quantile where cells are unequal: only a client's total varies."""
    parts = len(next(iter(owners.values())))
    smallest = min(owners, key=lambda c: len(where[c]))
    n = len(where[smallest])
    cuts = _cut_points(n, parts, rng, f"class {smallest}")
    return {c: np.split(where[c], cuts * len(where[c]) // n) for c in owners}


def _slices_own(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """Cut points of its own for every cell: clients are class-imbalanced too."""
    return {c: np.split(where[c], _cut_points(len(where[c]), len(who), rng, f"class {c}")) for c, who in owners.items()}


def _slices_equal(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """Every cell in parts as equal as can be."""
    for c, who in owners.items():
        if len(who) > len(where[c]):
            raise UserError(f"class {c} has {len(where[c])} examples, too few for the {len(who)} clients that share it")
    return {c: np.array_split(where[c], len(who)) for c, who in owners.items()}


def _assemble(
    pool: Pool,
    train_cell: np.ndarray,
    test_cell: np.ndarray,
    assigned: list[list[int]],
    slices: Slices,
    rng: np.random.Generator,
) -> Parts:
    """Cuts each cell among the clients that hold it; a client's test set is all test examples of its cells."""
    owners: dict[int, list[int]] = {}
    for j, cells in enumerate(assigned):
        for c in cells:
            owners.setdefault(c, []).append(j)
    where = _positions(train_cell, rng)
    pieces = slices(where, owners, rng)
    mine: list[list[Index]] = [[] for _ in assigned]
    for c, who in owners.items():
        for j, piece in zip(who, pieces[c], strict=True):
            mine[j].append(piece)
    offset = len(pool.y_train)
    tests = {tuple(sorted(cells)): np.flatnonzero(np.isin(test_cell, cells)) + offset for cells in assigned}
    return [np.sort(np.concatenate(m)) for m in mine], [tests[tuple(sorted(cells))] for cells in assigned]


def _labels(pool: Pool) -> np.ndarray:
    return np.unique(pool.y_train)


def _label_skew_grouped(slices: Slices) -> Callable[[Pool, int, float, np.random.Generator], Parts]:
    def make(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
        labels, c = _labels(pool), int(parameter)
        if len(labels) % c:
            raise UserError(
                f"label-skew:{c} of {len(labels)} labels leaves no complementary groups; "
                f"take a divisor of {len(labels)}, or label-skew-unbalanced:{c}"
            )
        size = len(labels) // c
        if clients % size:
            raise UserError(
                f"label-skew:{c} of {len(labels)} labels needs a multiple of {size} clients, not {clients}; "
                f"or take label-skew-unbalanced:{c}"
            )
        assigned = []
        for _ in range(clients // size):
            assigned += [[int(k) for k in group] for group in rng.permutation(labels).reshape(size, c)]
        return _assemble(pool, pool.y_train, pool.y_test, assigned, slices, rng)

    return make


def _refilled(labels: np.ndarray, clients: int, c: int, rng: np.random.Generator) -> list[list[int]]:
    """c different labels for each client from a shuffled list that is refilled when empty."""
    if c > len(labels):
        raise UserError(f"{c} labels per client are more than the {len(labels)} there are")
    assigned: list[list[int]] = []
    deck: list[int] = []
    for _ in range(clients):
        hand: list[int] = []
        while len(hand) < c:
            fresh = [k for k in deck if k not in hand]
            if not fresh:
                deck += [int(k) for k in rng.permutation(labels)]
                continue
            deck.remove(fresh[0])
            hand.append(fresh[0])
        assigned.append(hand)
    return assigned


def _label_skew_unbalanced(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assigned = _refilled(_labels(pool), clients, int(parameter), rng)
    return _assemble(pool, pool.y_train, pool.y_test, assigned, _slices_own, rng)


def _classes(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assigned = _refilled(_labels(pool), clients, int(parameter), rng)
    counts = {int(k): int(np.sum(pool.y_train == k)) for k in _labels(pool)}
    holders = {k: sum(k in hand for hand in assigned) for k in counts}
    each = min(counts[k] // holders[k] for k in counts if holders[k])
    if not each:
        raise UserError(f"classes:{int(parameter)} with {clients} clients leaves less than one example per class")

    def slices(
        where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
    ) -> dict[int, list[Index]]:
        return {c: np.split(where[c][: each * len(who)], len(who)) for c, who in owners.items()}

    return _assemble(pool, pool.y_train, pool.y_test, assigned, slices, rng)


def _concept_drift(slices: Slices) -> Callable[[Pool, int, float, np.random.Generator], Parts]:
    def make(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
        if pool.fine_train is None or pool.fine_test is None:
            raise UserError(f"concept drift needs subclasses, and {pool.name} has none (fine_train, fine_test)")
        cells = [[int(f) for f in np.unique(pool.fine_train[pool.y_train == k])] for k in _labels(pool)]
        size = len(cells[0])
        shared = slices is not _slices_own
        if shared and any(len(c) != size for c in cells):
            raise UserError("concept-drift needs equally many subclasses in every class; try concept-drift-unbalanced")
        if shared and clients % size:
            raise UserError(f"concept-drift needs a multiple of {size} clients, not {clients}")
        if shared:
            assigned, _ = _deal(cells, clients, rng)
        else:  # each class has a list of its own, refilled when empty
            hands = [_refilled(np.array(c), clients, 1, rng) for c in cells]
            assigned = [[hand[j][0] for hand in hands] for j in range(clients)]
        return _assemble(pool, pool.fine_train, pool.fine_test, assigned, slices, rng)

    return make


def _dirichlet(pool: Pool, clients: int, beta: float, rng: np.random.Generator) -> Parts:
    """Each class over the clients by Dir(beta), training and test files merged, 80/20 inside each client (pFedVMP)."""
    y = np.concatenate([pool.y_train, pool.y_test])
    mine: list[list[Index]] = [[] for _ in range(clients)]
    for k in np.unique(y):
        index = rng.permutation(np.flatnonzero(y == k))
        edges = np.floor(np.cumsum(rng.dirichlet(np.full(clients, beta)))[:-1] * len(index)).astype(int)
        for j, piece in enumerate(np.split(index, edges)):
            mine[j].append(piece)
    return _fifth_held_out([np.concatenate(pieces) for pieces in mine], rng)


def _fifth_held_out(mine: Sequence[Index], rng: np.random.Generator) -> Parts:
    """80/20 inside each client."""
    train, test = [], []
    for own in mine:
        index = rng.permutation(own)
        cut = max(1, round(0.2 * len(index))) if len(index) else 0
        test.append(np.sort(index[:cut]))
        train.append(np.sort(index[cut:]))
    return train, test


def _pathological(pool: Pool, clients: int, parameter: float, rng: np.random.Generator, each: float = 100) -> Parts:
    """C random labels each, and as many examples of each, no two clients the same; 80/20 inside (pFedVMP, C.1)."""
    y, c, n = np.concatenate([pool.y_train, pool.y_test]), int(parameter), int(each)
    labels = np.unique(y)
    if c > len(labels):
        raise UserError(f"{c} labels per client are more than the {len(labels)} there are")
    left = {k: rng.permutation(np.flatnonzero(y == k)) for k in labels.tolist()}
    mine = []
    for _ in range(clients):
        enough = [k for k, index in left.items() if len(index) >= n]
        if len(enough) < c:
            raise UserError(f"{clients} clients with {c} labels, {n} examples of each, are more than {pool.name} has")
        hand = rng.choice(enough, c, replace=False).tolist()
        mine.append(np.concatenate([left[k][:n] for k in hand]))
        left |= {k: left[k][n:] for k in hand}
    return _fifth_held_out(mine, rng)


def _shards(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Sorted by label, cut into S shards per client, dealt at random: a client may get one label twice."""
    count = int(parameter) * clients
    index = rng.permutation(len(pool.y_train))
    index = index[np.argsort(pool.y_train[index], kind="stable")]
    if count > len(index):
        raise UserError(f"{count} shards are more than the {len(index)} training examples")
    shards = np.array_split(index, count)
    dealt = rng.permutation(count).reshape(clients, -1)
    train = [np.sort(np.concatenate([shards[s] for s in hand])) for hand in dealt]
    offset = len(pool.y_train)
    return train, [np.flatnonzero(np.isin(pool.y_test, np.unique(pool.y_train[t]))) + offset for t in train]


def _whole_test(pool: Pool, clients: int) -> list[Index]:
    return [np.arange(len(pool.y_train), len(pool.y_train) + len(pool.y_test))] * clients


def _random_slicing(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    index = rng.permutation(len(pool.y_train))
    pieces = np.split(index, _cut_points(len(index), clients, rng, pool.name))
    return [np.sort(p) for p in pieces], _whole_test(pool, clients)


def _equal(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Sizes as equal as can be, each label spread evenly."""
    index = rng.permutation(len(pool.y_train))
    if pool.task == "classification":
        index = index[np.argsort(pool.y_train[index], kind="stable")]
    return [np.sort(index[j::clients]) for j in range(clients)], _whole_test(pool, clients)


def _iid(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Every example goes to a client chosen at random."""
    owner = rng.integers(clients, size=len(pool.y_train))
    return [np.flatnonzero(owner == j) for j in range(clients)], _whole_test(pool, clients)


def _names(pool: Pool, clients: int) -> list[str]:
    """The clients that the data name; ``clients`` is their number, or 0."""
    if pool.client_train is None or pool.client_test is None:
        raise UserError(f"{pool.name} does not say whose the rows are (client_train, client_test); choose a --split")
    names = sorted(str(c) for c in np.unique(pool.client_train))
    if clients not in (0, len(names)):
        raise UserError(f"{pool.name} has {len(names)} clients of its own, not {clients}")
    strangers = sorted(set(pool.client_test.astype(str)) - set(names))
    if strangers:
        raise UserError(f"client {strangers[0]} of {pool.name} has test rows but no training rows")
    return names


def _natural(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assert pool.client_train is not None
    assert pool.client_test is not None
    train, test = rows_of(pool.client_train.astype(str)), rows_of(pool.client_test.astype(str))
    offset, none = len(pool.y_train), np.empty(0, dtype=np.int64)
    return list(train.values()), [test.get(name, none) + offset for name in train]


def _domains_of(pool: Pool) -> list[str]:
    """The domains that the data name, in the order in which they come."""
    if pool.client_train is None or pool.client_test is None:
        raise UserError(f"{pool.name} has no domains (client_train, client_test); digit-three and digit-five have")
    return list(dict.fromkeys(pool.client_train.astype(str).tolist()))


def _domain_names(pool: Pool, train: list[Index]) -> list[str]:
    """Clients are called by their domain, and numbered where any of them share one."""
    assert pool.client_train is not None
    domains = [str(pool.client_train[index[0]]) for index in train]
    if len(set(domains)) == len(domains):
        return domains
    return [f"{name}-{domains[:j].count(name)}" for j, name in enumerate(domains)]


def _domains(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """N training examples of one domain each, drawn at random; tested on all of its test examples."""
    domains, n = _domains_of(pool), int(parameter)
    if clients % len(domains):
        raise UserError(f"{pool.name} has {len(domains)} domains: a multiple of as many clients, not {clients}")
    assert pool.client_train is not None
    assert pool.client_test is not None
    owner, owner_test, offset = pool.client_train.astype(str), pool.client_test.astype(str), len(pool.y_train)
    train: list[Index] = [np.empty(0, dtype=np.int64)] * clients
    test = list(train)
    for d, name in enumerate(domains):
        index, mine = rng.permutation(np.flatnonzero(owner == name)), range(d, clients, len(domains))
        if len(mine) * n > len(index):
            raise UserError(f"domain {name} has {len(index)} training examples, fewer than {len(mine)} times {n}")
        for k, j in enumerate(mine):
            train[j] = np.sort(index[k * n : (k + 1) * n])
            test[j] = np.flatnonzero(owner_test == name) + offset
    return train, test


def _domain_skew(pool: Pool, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """A random domain, then C random labels of it; sizes cut at random (pFedVEM's Table 7)."""
    domains, labels, c = _domains_of(pool), _labels(pool), int(parameter)
    if c > len(labels):
        raise UserError(f"{c} labels per client are more than the {len(labels)} there are")
    assert pool.client_train is not None
    assert pool.client_test is not None
    number = {name: d for d, name in enumerate(domains)}

    def cells(owner: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([number.get(name, -1) for name in owner.astype(str)]) * (int(labels[-1]) + 1) + y

    drawn = rng.integers(len(domains), size=clients)
    assigned = [
        [int(d * (int(labels[-1]) + 1) + k) for k in rng.choice(labels, c, replace=False)] for d in drawn.tolist()
    ]
    return _assemble(
        pool, cells(pool.client_train, pool.y_train), cells(pool.client_test, pool.y_test), assigned, _slices_own, rng
    )


SPLITS: dict[str, Split] = {
    "label-skew": Split(
        "C labels each, sizes cut at random with cuts shared by all classes",
        "C",
        _label_skew_grouped(_slices_shared),
    ),
    "label-skew-equal": Split("C labels each, equal sizes", "C", _label_skew_grouped(_slices_equal)),
    "label-skew-unbalanced": Split("C labels each, cuts of its own for every class", "C", _label_skew_unbalanced),
    "concept-drift": Split("one subclass of every class each, shared cuts", None, _concept_drift(_slices_shared)),
    "concept-drift-equal": Split("one subclass of every class each, equal sizes", None, _concept_drift(_slices_equal)),
    "concept-drift-unbalanced": Split(
        "one subclass of every class each, cuts of its own for every subclass",
        None,
        _concept_drift(_slices_own),
    ),
    "dirichlet": Split("each class over the clients by Dir(BETA); 80/20 inside each client", "BETA", _dirichlet),
    "pathological": Split(
        "C random labels each, each=N (100) examples of each; 80/20 inside", "C", _pathological, options=("each",)
    ),
    "classes": Split("exactly S labels each, exactly equal sizes", "S", _classes),
    "shards": Split("S shards of the label-sorted data each (labels may repeat)", "S", _shards),
    "random-slicing": Split("all labels, sizes cut at random", None, _random_slicing),
    "equal": Split("all labels, equal sizes", None, _equal),
    "iid": Split("every example to a client at random", None, _iid),
    "domains": Split("N examples of one domain each, all domains equally often", "N", _domains, _domain_names),
    "domain-skew": Split(
        "a random domain each, C random labels of it, sizes cut at random", "C", _domain_skew, _domain_names
    ),
    "natural": Split("the clients that the data name", None, _natural),
}
