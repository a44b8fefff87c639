"""Pictures of the gallery's pages: the fit beside NUTS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hierfl.models.any_model.printed import number_names
from hierfl.plots.style import GLOBAL, INK, PERSONAL, QUIET, styled

#: clients of a series
SERIES = 3


def draw(
    picture: dict[str, Any], fitted: Any, frame: pd.DataFrame, reference: dict[str, Any] | None, path: Path
) -> None:
    """Writes a page's picture.

    Args:
        picture: ``kind``, and what that takes; see docs/gallery/pages.toml.
        fitted: a :class:`~hierfl.models.any_model.fitted_model.FittedModel`.
        frame: its rows.
        reference: NUTS of the same rows, or None.
        path: of the png.
    """
    kind = {"clients": _clients, "numbers": _numbers, "pair": _pair, "agree": _agree, "series": _series, "heat": _heat}
    with styled() as plt:
        figure = plt.figure(figsize=(5.2, 3.4), layout="constrained")
        kind[picture["kind"]](figure, picture, fitted, frame, reference)
        figure.savefig(path, dpi=100, metadata={"Software": None})
        plt.close(figure)


def of_one(values: dict[str, np.ndarray], label: str) -> np.ndarray:
    """Draws (D,) of a number such as ``mu[1]``."""
    site, _, at = label.partition("[")
    value = values[site]
    return value[:, *map(int, at.rstrip("]").split(","))] if at else value


def _intervals(ax: Any, names: list[str], ours: np.ndarray, theirs: list[np.ndarray], label: str) -> None:
    """Rows of intervals: draws (D, K) of ours, and mean, 5 % and 95 % of a reference, (K,) each, or nothing."""
    at = np.arange(len(names))
    low, high = np.quantile(ours, [0.05, 0.95], axis=0)
    gap = 0.18 if theirs else 0.0
    ax.hlines(at - gap, low, high, color=PERSONAL, lw=1.4)
    ax.plot(ours.mean(0), at - gap, "o", color=PERSONAL, ms=3.5, label="fit from sums")
    if theirs:
        mean, below, above = theirs
        ax.hlines(at + gap, below, above, color=QUIET, lw=1.4)
        ax.plot(mean, at + gap, "o", color=QUIET, ms=3.5, label="NUTS, pooled")
        _legend(ax)
    ax.set_yticks(at, names, fontsize=7 if len(names) < 17 else 6)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(label)


def _legend(ax: Any) -> None:
    """Above the picture, so that it hides nothing."""
    ax.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderpad=0.2)


def _quantities(reference: dict[str, Any] | None, site: str) -> list[np.ndarray]:
    if reference is None or site not in reference["quantities"]:
        return []
    entry = reference["quantities"][site]
    return [np.asarray(entry[what]) for what in ("mean", "q05", "q95")]


def _clients(figure: Any, picture: dict[str, Any], fitted: Any, _: Any, reference: Any) -> None:
    at, ax = tuple(picture.get("at", ())), figure.subplots()
    names = fitted.client_names
    ours = fitted.clients[picture["site"]]
    ours = ours.reshape(*ours.shape[:2], *(n for n in ours.shape[2:] if n > 1))
    theirs = [value[:, *at] for value in _quantities(reference, picture["site"])]
    _intervals(ax, names, ours[:, :, *at], theirs, picture["label"])


def _numbers(figure: Any, picture: dict[str, Any], fitted: Any, _: Any, reference: Any) -> None:
    names, ours, theirs = [], [], [[], [], []]
    for site in picture["sites"]:
        value = fitted.globals[site]
        names += number_names(site, value.shape[1:])
        ours.append(value.reshape(len(value), -1))
        for column, quantity in zip(theirs, _quantities(reference, site), strict=True):
            column.append(quantity.ravel())
    ends = [np.concatenate(column) for column in theirs] if theirs[0] else []
    _intervals(figure.subplots(), names, np.concatenate(ours, 1), ends, picture["label"])


def _pair(figure: Any, picture: dict[str, Any], fitted: Any, _: Any, reference: Any) -> None:
    ax = figure.subplots()
    across, up = (of_one(fitted.globals, picture[axis]) for axis in ("across", "up"))
    ax.scatter(across, up, s=5, color=PERSONAL, alpha=0.4, lw=0, label="fit from sums, draws")
    if reference is not None:
        (x, left, right), (y, low, high) = (_three(reference, picture[axis]) for axis in ("across", "up"))
        ax.hlines(y, left, right, color=INK, lw=1.4)
        ax.vlines(x, low, high, color=INK, lw=1.4, label="NUTS: mean, 90 %")
    ax.set_xlabel(picture["across"])
    ax.set_ylabel(picture["up"])
    _legend(ax)


def _three(reference: dict[str, Any], label: str) -> list[float]:
    """Mean, 5 % and 95 % of a number such as ``mu[1]`` by NUTS."""
    site = label.partition("[")[0]
    return [float(of_one({site: value[None]}, label)[0]) for value in _quantities(reference, site)]


def _agree(figure: Any, picture: dict[str, Any], fitted: Any, _: Any, reference: Any) -> None:
    entry, ours = reference["quantities"][picture["site"]], fitted.clients[picture["site"]]
    for ax, what, value in zip(figure.subplots(1, 2), ("mean", "sd"), (ours.mean(0), ours.std(0)), strict=True):
        theirs = np.ravel(entry[what])
        ends = [min(theirs.min(), value.min()), max(theirs.max(), value.max())]
        ax.plot(ends, ends, color=QUIET, lw=0.8)
        ax.scatter(theirs, value.ravel(), s=7, color=PERSONAL, alpha=0.6, lw=0)
        ax.set_xlabel(f"{what}, NUTS")
        ax.set_ylabel(f"{what}, fit from sums")


def _series(figure: Any, picture: dict[str, Any], fitted: Any, frame: pd.DataFrame, reference: Any) -> None:
    ours = fitted.clients[picture["site"]]
    ours = ours.reshape(*ours.shape[:2], -1)
    _, below, above = _quantities(reference, picture["site"])
    group = fitted.run.fitted.federation.about["client"]
    for j, ax in enumerate(np.atleast_1d(figure.subplots(1, SERIES, sharey=True))):
        rows = frame[frame[group].astype(str) == fitted.client_names[j]]
        across = rows[picture["across"]].to_numpy()
        low, high = np.quantile(ours[:, j], [0.05, 0.95], axis=0)
        ax.fill_between(across, low, high, color=PERSONAL, alpha=0.3, lw=0)
        ax.plot(across, ours[:, j].mean(0), color=PERSONAL, lw=1.2)
        ax.plot(across, below[j], color=INK, lw=0.8, ls="--")
        ax.plot(across, above[j], color=INK, lw=0.8, ls="--")
        ax.plot(across, rows[picture["column"]], "o", color=GLOBAL, ms=2.5)
        ax.set_title(fitted.client_names[j])
        ax.set_xlabel(picture["across"])
        if not j:
            ax.set_ylabel(picture["label"])


def _heat(figure: Any, picture: dict[str, Any], fitted: Any, _: Any, __: Any) -> None:
    value = fitted.globals[picture["site"]].mean(0)
    ax = figure.subplots()
    names = fitted.method.network.level_names[picture["level"]]
    shown = ax.imshow(value, cmap="Blues", vmin=0, aspect="auto")
    ax.set_xticks(range(len(names)), names, rotation=45, fontsize=7)
    ax.set_yticks(range(len(value)), range(len(value)))
    ax.set_ylabel(picture["label"])
    ax.grid(visible=False)
    figure.colorbar(shown, ax=ax, label="posterior mean")
