"""Final spreads of heads where only some of the clients report in a round: PFedHB and PFedEB.

    python -P experiments/results/posteriors/sampled_clients.py OUT.csv [--method pfedhb] [--data heads-mlp:16]
        [--participation 1 0.2 0.1] [--seeds 3] [--rounds 60] [--set NAME=VALUE ...]

Data and training are those of trained_starts.py: clients whose heads differ by 0.5. A row has rho of the weights after
the last round, the least and the largest in the second half of the rounds, and how often it began again (PFedHB).
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hierfl import fit
from hierfl.inference.server.server import Server, ServerState

sys.path.append(str(Path(__file__).resolve().parent))
from trained_starts import METHODS, TRAINED, made


def row(method: str, data: str, seed: int, participation: float, rounds: int, more: dict[str, str]) -> dict[str, float]:
    """Fits once, and returns the spreads."""
    federation, network = made(data, seed)
    cls, name = METHODS[method]
    passed: list[tuple[float, float]] = []
    forward = Server.forward

    def watched(server: Server, *given: Any) -> ServerState:
        shared = (found := forward(server, *given)).shared
        passed.append((float(shared[f"{name}.log_rho"].flatten()[0]), float(shared.get(f"{name}.restart", 0.0))))
        return found

    settings = {**TRAINED.get((method, "heads"), {}), **more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "forward", watched)
        fit(
            cls(network, draws=2, **settings), federation, rounds, seed=seed, participation=participation,
            evaluate_every=10_000, progress=False,
        )  # fmt: skip
    late = [math.exp(log_rho) for log_rho, _ in passed[rounds // 2 :]]
    # The number of restarts stays in the shared values of rounds without a step.
    begun = sum(now > before for (_, before), (_, now) in pairwise(passed))
    return {"rho": round(late[-1], 3), "least": round(min(late), 3), "largest": round(max(late), 3), "restarts": begun}


def main() -> None:
    """Computes the rows that lack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", choices=METHODS, default="pfedhb")
    parser.add_argument("--data", choices=["heads-linear", "heads-mlp:16"], default="heads-mlp:16")
    parser.add_argument("--participation", type=float, nargs="+", default=[1.0, 0.2, 0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = pd.read_csv(given.out, keep_default_na=False).to_dict("records") if given.out.is_file() else []
    more = dict(text.split("=", 1) for text in given.set)
    for participation in given.participation:
        for seed in range(given.seeds):
            key = {
                "method": given.method, "settings": " ".join(given.set), "data": given.data, "seed": seed,
                "rounds": given.rounds, "participation": participation,
            }  # fmt: skip
            if any(all(r[k] == v for k, v in key.items()) for r in rows):
                continue
            began = time.process_time()
            found = row(given.method, given.data, seed, participation, given.rounds, more)
            rows.append({**key, **found, "cpu_seconds": round(time.process_time() - began, 1)})
            pd.DataFrame(rows).to_csv(given.out, index=False)
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
