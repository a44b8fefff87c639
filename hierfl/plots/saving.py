"""Figures as files: each of its own, and all beside each other."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..files import write_whole
from .legible import SIZE, new_figure
from .style import INK, styled


def save_all(
    folder: Path, drawn: dict[str, Callable[[Any], Any]], title: str, together: str = "overview"
) -> list[Path]:
    """Writes every picture to ``folder/NAME.png``, and all of them beside each other to one more."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled() as plt:
        paths, sizes = list[Path](), list[Any]()
        for name, draw in drawn.items():
            figure, ax = new_figure(plt)
            draw(ax)
            sizes.append(figure.get_size_inches())
            paths.append(save(plt, figure, folder / f"{name}.png"))
        lines = max(1, -(-len(drawn) // 2))
        # Each column as wide, each line as high, as its largest figure alone: names stay as legible.
        widths = [max((w for w, _ in sizes[k::2]), default=SIZE[0]) for k in range(2)]
        heights = [max((h for _, h in sizes[2 * k : 2 * k + 2]), default=SIZE[1]) for k in range(lines)]
        figure, axes = plt.subplots(
            lines, 2, figsize=(sum(widths), 0.3 + sum(heights)), layout="constrained", squeeze=False,
            width_ratios=widths, height_ratios=heights,
        )  # fmt: skip
        for ax, draw in zip(axes.flat, drawn.values(), strict=False):
            draw(ax)
        for ax in axes.flat[len(drawn) :]:
            ax.set_axis_off()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
        return [*paths, save(plt, figure, folder / f"{together}.png")]


#: what is set as mathematics: parts of our own labels, and a scale's numbers; a name with dollars is a name
_SCALE = r"\\mathdefault\{(?:[0-9.]+\\times)?[0-9]+(?:\^\{-?[0-9.]+\})?\}"
_MATHS = re.compile(rf"[^$]*\$(?:\\tau_j(?: / \\Sigma \\tau)?|\|w_j - w\|\^2 / d|{_SCALE})\$[^$]*")


def _plain(text: str) -> str:
    """A text in which dollars are dollars, but for mathematics of ours."""
    return text if _MATHS.fullmatch(text) else text.replace("$", r"\$")


def _plain_of(words: Callable[[float, int | None], object], x: float, position: int | None = None) -> str:
    """The label of a tick, plain."""
    return _plain(str(words(x, position)))


def _names_as_they_are(figure: Any) -> None:
    """Names of clients, columns and data come from elsewhere, and need not be TeX."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axis in [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]:
        if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):  # which names of ticks are
            formatter.func = partial(_plain_of, formatter.func)
    for text in figure.findobj(Text):
        text.set_text(_plain(text.get_text()))


def save(plt: Any, figure: Any, path: Path) -> Path:
    _names_as_they_are(figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    write_whole(path, picture.getvalue())
    plt.close(figure)
    return path
