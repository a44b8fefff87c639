"""Missing."""

from __future__ import annotations

import argparse

from hierfl.errors import UserError
from hierfl.files import user_path

from ..configure import parse_settings
from .cells import parse_metrics, search
from .sensitivity import draw_sensitivity, numeric_settings


def main(arguments: list[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m hierfl.experiments.search.cells", description="Choose settings on validation data."
    )
    parser.add_argument("method")
    parser.add_argument("grid", nargs="+", metavar="KEY=V,V,...")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", type=user_path)
    parser.add_argument("--seeds", type=int, default=3)
    for name in ("rounds", "clients"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("split", "network"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--participation", type=float, help="probability that a client takes part in a round")
    parser.add_argument("--validation", type=float, help="share of the training data to choose by (default: 0.1)")
    parser.add_argument("--settle", type=int, default=1, help="average over so many last evaluations")
    parser.add_argument("--by", metavar="METRIC,...", help="judge by the mean of these")
    parser.add_argument("--against", metavar="KEY", help="draw the metrics against this setting")
    parser.add_argument("--out", type=user_path, required=True)
    said = parser.parse_args(arguments)
    by = parse_metrics(said.by or "")
    grid = {key: values.split(",") for key, values in parse_settings(said.grid).items()}
    names = ("data_root", "rounds", "split", "network", "clients", "participation", "validation")
    given = {k: getattr(said, k) for k in names if getattr(said, k) is not None}
    if said.against and said.against not in numeric_settings(said.method):
        raise UserError(f"--against takes a setting of {said.method} that is a number, not {said.against!r}")
    cells = search(said.method, said.data, said.seeds, grid, said.out, given, said.settle, by)
    print("best:", cells[0])
    if said.against:
        title = f"{said.method} on {said.data}, {said.seeds} seed{'s' * (said.seeds > 1)}"
        print(draw_sensitivity(said.method, cells, said.against, title, said.out.with_suffix(".png")))
