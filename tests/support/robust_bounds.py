"""Bounds of the watch on clients, by simulation: python tests/support/robust_bounds.py prints them in five minutes."""

from __future__ import annotations

import numpy as np

from hierfl.inference.server.robust import moments, standing

#: share of a client's deviation that is its own in all rounds; the rest is new in each
LASTING = 0.64


def honest(rng: np.random.Generator, rounds: int, clients: int, kind: str, measures: int = 3) -> np.ndarray:
    """Standardised measures of honest clients, (T, J, M)."""
    shape = (1, clients, measures)
    own = rng.standard_t(5, size=shape) if kind == "heavy tails" else rng.normal(size=shape)
    if kind == "one outlies":
        own[0, 0] = 3.0
    return own * LASTING**0.5 + (1 - LASTING) ** 0.5 * rng.normal(size=(rounds, clients, measures))


def quantile(clients: int, rounds: int, replicates: int, seed: int = 0) -> float:
    """The largest of the three kinds' 95 % quantiles."""
    rng, quantiles = np.random.default_rng(seed), []
    for kind in ("normal", "heavy tails", "one outlies"):
        # Spreads far above the least ones.
        largest = [np.nanmax(standing.distances(100 * honest(rng, rounds, clients, kind))) for _ in range(replicates)]
        quantiles.append(float(np.quantile(largest, 0.95)))
    return max(quantiles)


def estimate_quantile(clients: int, replicates: int, seed: int = 0) -> float:
    """Likewise of distances of estimates, of one number or of two, from the mean of the others."""
    rng, quantiles = np.random.default_rng(seed), []
    for kind in ("normal", "heavy tails", "one outlies"):
        for p in (1, 2):
            for scale in (1.0, 4.0):  # as standard errors say, or sites differ by more
                largest = []
                for _ in range(replicates):
                    own = scale * honest(rng, 1, clients, kind, p)[0]
                    far = np.sqrt((own**2).mean(1))
                    ratios = []
                    for j in range(clients):
                        others = np.delete(far, j)[None] ** 2
                        wide = np.sqrt(standing.without_furthest(others, clients).mean())
                        ratios.append(far[j] / max(1.0, wide))
                    largest.append(max(ratios))
                quantiles.append(float(np.quantile(largest, 0.95)))
    return max(quantiles)


def rows_quantile(clients: int, replicates: int, seed: int = 0) -> float:
    """Likewise of the spread of a site's rows and of its own intercept, both to both sides, in one round.

    Honest sites' residual standard deviations differ by a factor of two: by far more than least spreads say.
    """
    rng, quantiles = np.random.default_rng(seed), []
    for kind in ("normal", "heavy tails", "one outlies"):
        values = 100 * np.concatenate([honest(rng, 1, clients, kind, 2) for _ in range(replicates)])
        largest = [np.nanmax(np.abs(standing.distances(row[None]))) for row in values]
        quantiles.append(float(np.quantile(largest, 0.95)))
    return max(quantiles)


def moments_quantile(clients: int, replicates: int, seed: int = 0) -> float:
    """Likewise of columns' means and standard deviations before the first round, of one column and of up to thirty."""
    rng, quantiles = np.random.default_rng(seed), []
    for kind in ("normal", "heavy tails", "one outlies"):
        for columns in (1, 3, 10, 30):
            shape, largest = (columns, clients, 2), []
            for _ in range(replicates):
                values = rng.standard_t(5, size=shape) if kind == "heavy tails" else rng.normal(size=shape)
                if kind == "one outlies":
                    values[0, 0] = 3.0
                largest.append(np.nanmax(np.abs(standing.distances(100 * values))))
            quantiles.append(float(np.quantile(largest, 0.95)))
    return max(quantiles)


def named_of_three(kind: str, columns: int, replicates: int, seed: int = 0) -> float:
    """Share of studies of three honest sites in which :func:`~.moments.unlike` names a site.

    Sites have 20 to 500 rows. Standard deviations of a column differ by a factor of exp(0.35 N(0, 1)) between sites,
    and its means by N(0, 1) standard deviations; of the kind "one outlies" the first site's mean by three more.
    """
    rng, named = np.random.default_rng(seed), 0
    for _ in range(replicates):
        n = np.exp(rng.uniform(np.log(20), np.log(500), 3)).astype(int)
        scale, level = np.exp(0.35 * rng.normal(size=(3, columns))), rng.normal(size=(3, columns))
        if kind == "one outlies":
            level[0] += 3.0
        total, square = np.zeros((3, columns)), np.zeros((3, columns))
        for j in range(3):
            shape = (n[j], columns)
            rows = {
                "heavy tails": lambda s=shape: rng.standard_t(3, size=s) / 3**0.5,
                "skewed": lambda s=shape: (rng.lognormal(size=s) - 1.65) / 2.16,
            }.get(kind, lambda s=shape: rng.normal(size=s))()
            rows = level[j] + scale[j] * rows
            total[j], square[j] = rows.sum(0), (rows**2).sum(0)
        named += bool(moments.unlike(moments.compared({"n": n.astype(float), "total": total, "square": square})))
    return named / replicates


#: numbers of clients, and simulated runs for each bound
SIZES, REPLICATES = (4, 5, 6, 8, 10, 12, 20, 50), 2000


def once_and_often(clients: int, replicates: int) -> tuple[float, float]:
    """In a single round, of messages and of what is compared of a site's rows; and of messages of ten or thirty."""
    once = max(quantile(clients, 1, replicates), rows_quantile(clients, replicates))
    return round(once, 1), round(max(quantile(clients, rounds, replicates) for rounds in (10, 30)), 1)


def main() -> None:
    """Prints the constants as :mod:`~hierfl.inference.server.robust.standing` and :mod:`~.moments` have them."""
    print("BOUNDS =", {n: once_and_often(n, REPLICATES) for n in SIZES}, flush=True)
    print("ESTIMATE_BOUNDS =", {n: round(estimate_quantile(n, REPLICATES), 1) for n in SIZES}, flush=True)
    print("MOMENT_BOUNDS =", {n: round(moments_quantile(n, REPLICATES), 1) for n in SIZES}, flush=True)
    for kind in ("normal", "heavy tails", "skewed", "one outlies"):
        shares = {columns: named_of_three(kind, columns, REPLICATES) for columns in (1, 3, 10, 30)}
        print(f"three honest sites, {kind}: a site is named in", shares, flush=True)


if __name__ == "__main__":
    main()
