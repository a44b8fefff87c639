"""How many points honest fits of structures beside the families' own ask about: clients' own residual deviations, a
factor that crosses the sites, and curves.

    python tests/support/honest_structures.py SECONDS [DRAWS]

Prints a line for every fit: rounds, points, and how many of them are explored. Those of
experiments/federate/guard/structures.toml are the largest. It ends after so many seconds of CPU time.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
import warnings

import numpy as np
import torch
from support.honest_points import table

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.method.capabilities import evaluated_points, explored_points
from hierfl.models import MixedEffects

#: family, and all of the formula right of "y ~ g"
STRUCTURES = [
    ("gaussian", "x + (1 | site); dispersion ~ (1 | site)"), ("binomial", "x + (1 | site) + (1 | item)"),
    ("gaussian", "x + (1 + x | site); dispersion ~ g + (1 | site)"), ("poisson", "s(x, k=5) + (1 | site)"),
    ("lognormal", "x + (1 | site); dispersion ~ (1 | site)"), ("student-t", "x + (1 | site) + (1 | item)"),
    ("gaussian", "x + (1 | site/ward); dispersion ~ (1 | site)"), ("gamma", "s(x, k=5) + (1 | site)"),
    ("gaussian", "s(x, k=5) + (1 | site/ward) + (1 | item); dispersion ~ g"),
    ("gaussian", "x + (1 + x | site/ward) + (1 | item)"), ("ordinal", "x + (1 | site) + (1 | item)"),
    ("binomial", "x + (1 | site/ward) + (1 | item)"),
]  # fmt: skip


def measured(family: str, terms: str, kind: str, seed: int, draws: int) -> dict[str, int]:
    """Rounds with other values than all before, their points, and those that are explored."""
    rng, frame = np.random.default_rng(seed), table(family, kind, 4, seed)
    items, wards = rng.integers(0, 6, len(frame)), rng.integers(0, 5, len(frame))
    frame = frame.assign(item=[f"i{k}" for k in items], ward=[f"w{k}" for k in wards])
    federation, design = from_formula(frame, f"y ~ g + {terms}", family=family, client="site")
    method, seen = MixedEffects(design, draws=draws), set[bytes]()
    numbers, plain = {"rounds": 0, "points": 0, "explored": 0}, PlateEngine.round

    def counted(engine: PlateEngine, broadcast: Broadcast, plan: object) -> object:
        shared = broadcast.shared
        values = b"".join(v.detach().double().numpy().tobytes() for _, v in sorted(shared.items()))
        if values not in seen:
            seen.add(values)
            each = {
                "rounds": 1,
                "points": evaluated_points(method, shared),
                "explored": explored_points(method, shared),
            }
            for name, more in each.items():
                numbers[name] += more
        return plain(engine, broadcast, plan)

    PlateEngine.round = counted  # type: ignore[method-assign, assignment]
    how = {"progress": False, "rounds": 150, "evaluate_every": 150, "dtype": torch.float64, "splits": (), "draws": 2}
    try:
        run = fit(method, federation, **how)
    finally:
        PlateEngine.round = plain  # type: ignore[method-assign]
    return {**numbers, "parameters": method.k, "done": int(method.finished(run.shared))}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for index in itertools.count():
        which = STRUCTURES[index % len(STRUCTURES)]
        level, number = ("plain", "strong")[index // len(STRUCTURES) % 2], index // len(STRUCTURES)
        if time.process_time() > float(sys.argv[1]):
            break
        print(*which, level, number, measured(*which, level, number, int((sys.argv[2:] or [0])[0])), flush=True)
