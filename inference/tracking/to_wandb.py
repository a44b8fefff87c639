"""Weights & Biases: a run of a project. ``WANDB_PROJECT`` and ``WANDB_MODE=offline`` are its own variables."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from .base import Logged, TrackedRun
from .kept import read_kept, write_kept

#: the project where ``WANDB_PROJECT`` names no other one
PROJECT = "hierfl"


class WandbTracker:
    """Configuration, metrics ``SPLIT/METRIC`` at the round's number, figures as images.

    What was sent before a run was resumed is known from the run's folder: an offline run cannot be asked.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        kept = read_kept(run.folder, "wandb") if run.resumed else None
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.folder = run.folder
        self.entry = kept or {"id": secrets.token_hex(4), "where": project, "logged": []}
        # Neither the program's code, nor what it prints, nor the state of a repository is the run's.
        settings = wandb.Settings(console="off", disable_git=True, save_code=False, silent=True)
        self.run = wandb.init(
            project=self.entry["where"], name=run.name, id=self.entry["id"], dir=str(run.folder),
            config=dict(run.parameters), settings=settings,
            **({} if kept is None or os.environ.get("WANDB_MODE") == "offline" else {"resume": "allow"}),
        )  # fmt: skip
        write_kept(self.folder, "wandb", self.entry)

    def logged(self) -> set[Logged]:
        return {(row["round"], row["split"]) for row in self.entry["logged"]}

    def metrics(self, number: int, split: str, values: Mapping[str, float]) -> None:
        self.run.log({f"{split}/{name}": value for name, value in values.items()}, step=number)
        self.entry["logged"].append({"round": number, "split": split})
        write_kept(self.folder, "wandb", self.entry)

    def figure(self, number: int, path: Path) -> None:
        import wandb

        self.run.log({f"figures/{path.stem}": wandb.Image(str(path))}, step=number)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
