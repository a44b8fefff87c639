"""Cases of :mod:`support.engine_cases` by the distributed engine: rank_fits.py FOLDER [masked] [robust=RULE] NAME ...,
once for each rank.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from hierfl.inference import fit
from hierfl.inference.engines.distributed import DistributedEngine
from hierfl.inference.engines.ranks import follows

sys.path.append(str(Path(__file__).parents[1]))  # last: there is a folder "hierfl" of tests
from support.engine_cases import CASES, how_of, keep, named, spoiled_messages


def main(folder: Path, *names: str) -> None:
    """Fits each of them; the first rank keeps what it is."""
    torch.set_num_threads(1)
    rules = [name.removeprefix("robust=") for name in names if name.startswith("robust=")]
    how: dict[str, Any] = {"masked": "masked" in names, "robust": (rules or ["none"])[0]}
    for name in [name for name in names if name != "masked" and "=" not in name]:
        method, federation = CASES[name]()
        with spoiled_messages():
            run = fit(method, named(federation), engine=DistributedEngine, **how, **how_of(method))
        if not follows():
            keep(run, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
