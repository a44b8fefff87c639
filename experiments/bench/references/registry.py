"""The references of each method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierfl.inference.state import State

from .fedrep import alternating_dataloader_loop, alternating_loop
from .pfedv import latent_loop
from .pfedvem import batched, dataloader_loop, tensor_loop

#: by method; the first does what is counted as the work of a round
REFERENCES: dict[str, dict[str, Callable[[Any], State]]] = {
    "pfedvem": {"tensor loop": tensor_loop, "DataLoader loop": dataloader_loop, "bare batched PyTorch": batched},
    "pfedv": {"tensor loop": latent_loop},
    "fedrep": {"tensor loop": alternating_loop, "DataLoader loop": alternating_dataloader_loop},
}
