"""Random numbers: the generator against its authors' vectors, the laws, and whose numbers they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hierfl import philox
from hierfl.rng import ClientNoise, client_keys, normals, permutation, permutations, uniforms

#: counter, key and words of Philox4x32-10, as the authors publish them in Random123's kat_vectors
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_words_are_the_authors(counter: list[int], key: list[int], expected: list[int]) -> None:
    c0, c1, c2, c3 = (torch.tensor([[c, c]]) for c in counter)
    words = philox.words((c0, c1, c2, c3), (torch.tensor([[key[0]]]), torch.tensor([[key[1]]])))
    assert [word.tolist() for word in words] == [[[word, word]] for word in expected]


def by_numpy(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The ten rounds in unsigned numbers of 64 bits."""
    c, k = [v.astype(np.uint64) for v in counter], [v.astype(np.uint64) for v in key]
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> high) ^ c[1] ^ k[0], b & low, (a >> high) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c)


def test_words_of_any_counter_are_those_of_unsigned_arithmetic() -> None:
    rng = np.random.default_rng(0)
    counter, key = rng.integers(0, 2**32, (4, 500)), rng.integers(0, 2**32, (2, 500))
    c0, c1, c2, c3 = map(torch.from_numpy, counter)
    words = torch.stack(philox.words((c0, c1, c2, c3), (torch.from_numpy(key[0]), torch.from_numpy(key[1]))))
    assert np.array_equal(words.numpy().astype(np.uint64), by_numpy(counter, key))


@given(first=st.integers(0, 10_000), count=st.integers(0, 300), rows=st.integers(1, 5), at_once=st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_normals_are_functions_of_their_place(first: int, count: int, rows: int, at_once: int) -> None:
    """Whatever is asked for beside them, and however much is made at a time."""
    keys = client_keys(range(rows))
    whole = philox.normals(keys, 7, 0, 10_300, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(philox.AT_ONCE, "cpu", at_once)
        numbers = philox.normals(keys, 7, first, count, torch.float64)
    assert torch.equal(numbers, whole[:, first : first + count])


def test_a_place_beyond_32_bits_has_numbers_of_its_own() -> None:
    keys = client_keys("a")
    near, far = (philox.normals(keys, 7, first, 8, torch.float64) for first in (0, 2**34))
    assert not (near == far).any()


def test_normals_in_single_precision_are_the_same_rounded() -> None:
    """A pair's radius r comes from log u with u near 1 where it is small: an error of 6e-8 there is one of 6e-8 / r."""
    keys = client_keys(range(100))
    double, single = (philox.normals(keys, 1, 0, 10_000, dtype) for dtype in (torch.float64, torch.float32))
    radius = double.unflatten(1, (-1, 2)).norm(dim=-1, keepdim=True)
    assert ((double - single).abs().unflatten(1, (-1, 2)) < 2e-6 + 1.2e-7 / radius).all()
    assert double.abs().max() < 6.8


def test_normals_are_standard_normal() -> None:
    """Kolmogorov and Smirnov's distance, tails, and correlations of neighbours: places, clients, streams."""
    n = 1000
    z = torch.stack([philox.normals(client_keys(range(n)), stream, 0, n, torch.float64) for stream in (1, 2)])
    assert stats.kstest(z.flatten()[: 10**6].numpy(), "norm").pvalue > 1e-3
    for beyond in (3.0, 4.0):
        expected = 2 * n**2 * 2 * stats.norm.sf(beyond)
        assert abs((z.abs() > beyond).sum() - expected) < 4 * expected**0.5
    for a, b in ((z[0], z[1]), (z[0, 1:], z[0, :-1]), (z[0, :, 1:], z[0, :, :-1]), (z[0, :, 2:], z[0, :, :-2])):
        for left, right in ((a, b), (a.square(), b.square())):
            assert abs(np.corrcoef(left.flatten(), right.flatten())[0, 1]) < 4.5 / n


def test_uniform_numbers_are_uniform_and_a_clients_own() -> None:
    keys = client_keys(range(20_000))
    u = uniforms(keys, 3, "reports")
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert torch.equal(u[7:9], uniforms(keys[7:9], 3, "reports"))
    assert not torch.equal(u, uniforms(keys, 4, "reports"))


def test_normals_of_a_shape() -> None:
    numbers = normals(torch.Size([3, 5]), 0, "server", dtype=torch.float64)
    assert numbers.shape == (3, 5)
    assert torch.equal(numbers, normals(torch.Size([3, 5]), 0, "server", dtype=torch.float64))
    assert normals(torch.Size([]), 0, dtype=torch.float32).shape == ()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    passes=st.integers(0, 4),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_orders_of_all_clients_are_those_of_each(sizes: list[int], passes: int, seed: int) -> None:
    each = [passes + row % 2 for row in range(len(sizes))]
    orders = permutations(client_keys(range(len(sizes))), sizes, each, seed, "epochs").split(
        [n for n, times in zip(sizes, each, strict=True) for _ in range(times)]
    )
    alone = [(row, n, epoch) for row, n in enumerate(sizes) for epoch in range(each[row])]
    for order, (row, n, epoch) in zip(orders, alone, strict=bool(alone)):
        assert sorted(order.tolist()) == [*range(n)]
        assert torch.equal(order, permutation(n, row, seed, "epochs", number=epoch))


def test_orders_are_sorted_in_parts_where_one_number_cannot_hold_their_places() -> None:
    """Three clients of 2^29 + 1 places would need too many bits; as many parts are forced by a few large places."""
    sizes = [2**14 + 1] + [3] * 2**18  # 15 bits of places: 2^16 orders at a time
    orders = permutations(client_keys(range(len(sizes))), sizes, [1] * len(sizes), 0)
    assert orders[: sizes[0]].sort().values.equal(torch.arange(sizes[0]))
    rest = orders[sizes[0] :].view(-1, 3)
    assert (rest.sort(1).values == torch.arange(3)).all()
    for row in (2**16 - 2, 2**16 - 1, 2**16, 2**18 - 1):  # beside the cuts
        assert torch.equal(rest[row], permutation(3, row + 1, 0))
    counts = torch.bincount(rest @ torch.tensor([9, 3, 1]))
    assert stats.chisquare(counts[counts > 0].numpy()).pvalue > 1e-3  # all six orders are as likely
    assert (counts > 0).sum() == 6


def test_a_clients_noise_does_not_depend_on_who_is_beside_it_or_what_was_read_before() -> None:
    shape, keys = torch.Size([3, 2]), client_keys("abcd")

    def noise(rows: slice = slice(None), steps: int = 1) -> ClientNoise:
        return ClientNoise(keys[rows], (0, 1, "phase"), 5, dtype=torch.float64).reading(steps)

    whole = torch.stack([noise().at(step).normal("w", None, shape) for step in range(12)])
    assert whole.shape == (12, 5, 4, 1, 3, 2)
    assert len(whole.unique()) == whole.numel()
    ahead, few = noise(steps=12), noise(slice(1, 3), steps=12)
    for step in (0, 1, 7, 11, 2):  # made ahead, for fewer rows, out of order
        assert torch.equal(ahead.at(step, 3).normal("w", None, shape), whole[step, :, :3])
        assert torch.equal(few.at(step).normal("w", None, shape), whole[step, :, 1:3])
    assert torch.equal(ahead.at(5, 4).normal("w", None, shape), whole[5])  # more rows than before


def test_blocks_that_are_made_ahead_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from hierfl import rng

    def all_steps() -> torch.Tensor:
        noise = ClientNoise(client_keys("ab"), (0,), 2).reading(9)
        return torch.stack([noise.at(step).normal("w", None, torch.Size([7])) for step in range(9)])

    expected = all_steps()
    for ahead in (1, 60, 100):
        monkeypatch.setitem(rng.MADE_AHEAD, "cpu", ahead)
        assert torch.equal(all_steps(), expected)


def test_noise_of_examples_does_not_depend_on_padding_or_pieces() -> None:
    shape, keys = torch.Size([2]), client_keys("ab")

    def noise(counts: list[int] | None = None, rows: slice = slice(None)) -> ClientNoise:
        return ClientNoise(keys[rows], (0,), 3, counts=counts, dtype=torch.float64)

    whole = noise([4, 7]).at(2).normal("z", 7, shape)
    assert whole.shape == (3, 2, 7, 2)
    assert not whole[:, 0, 4:].any()
    assert torch.equal(noise(rows=slice(0, 1)).at(2).normal("z", 4, shape), whole[:, :1, :4])
    pieces = noise().at(2)
    assert torch.equal(torch.cat([pieces.normal("z", 3, shape), pieces.normal("z", 4, shape)], 2)[:, 1], whole[:, 1])
    again = pieces.at(2).normal("z", 7, shape)  # a step begins anew
    assert torch.equal(again[:, 1], whole[:, 1])
    assert not torch.equal(noise([4, 7]).at(3).normal("z", 7, shape)[:, 1], whole[:, 1])
