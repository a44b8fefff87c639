"""Names, titles and legends that can be read: figures grow with them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

#: inches of a row of names, and of one letter of them
ROW, LETTER = 0.17, 0.06
#: letters of a name, of a line of a title, and of a line of a legend
MAX_LETTERS, TITLE_LETTERS, LEGEND_LETTERS = 40, 47, 62
#: width and height of a figure with neither names nor a legend, inches
SIZE = (4.6, 3.2)
#: inches of such a figure that are left of its axis, and that rows have
LEFT_INCHES, ROWS_INCHES = 0.7, 2.4
#: inches of a legend's line and the gaps beside it, and columns of a legend below panels
HANDLE, MOST_COLUMNS = 0.7, 4
#: points between an axis and its legend, where it has labels, and where it has none
BELOW, BARE = 34, 8
#: group id of a figure whose size is ours to change
GROWS = "hierfl: grows"


def new_figure(plt: Any) -> tuple[Any, Any]:
    """A figure that grows with what is drawn in it, and its axis."""
    drawn, ax = plt.subplots(figsize=SIZE, layout="constrained")
    drawn.set_gid(GROWS)
    return drawn, ax


def grow(ax: Any, width: float = 0.0, height: float = 0.0) -> None:
    """Makes the figure of an axis larger by so many inches; a figure of the caller's keeps its size."""
    drawn = ax.get_figure()
    if drawn.get_gid() == GROWS:
        across, down = drawn.get_size_inches()
        drawn.set_size_inches(across + max(0.0, width), down + max(0.0, height))


def short_names(names: Sequence[object], most: int = MAX_LETTERS) -> list[str]:
    """Names of at most so many letters: a longer one lacks its middle. Those that become alike are numbered."""
    half = most // 2
    texts = [t if len(t := str(name)) <= most else f"{t[:half]}…{t[half + 1 - most :]}" for name in names]
    alike = {t for t in texts if texts.count(t) > 1} if len(set(texts)) < len(texts) else set()
    return [f"{t} #{k + 1}" if t in alike else t for k, t in enumerate(texts)]


def name_rows(ax: Any, names: Sequence[object], after: Sequence[str] = (), most: int = MAX_LETTERS) -> None:
    """A name beside each row 0, 1, ..., the first on top; the figure grows until all can be read.

    Args:
        ax: of the rows.
        names: of clients or methods.
        after: each name's own end, such as a number of rows.
        most: letters of a name.
    """
    labels = short_names(names, most)
    labels = [f"{a}{b}" for a, b in zip(labels, after, strict=True)] if after else labels
    lines = [line for label in labels for line in label.split("\n")]
    ax.set_yticks(range(len(labels)), labels, fontsize=8 if len(lines) <= 15 else 7)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    grow(ax, LETTER * max(map(len, lines), default=0) - LEFT_INCHES, ROW * len(lines) - ROWS_INCHES)


def title(ax: Any, text: str) -> None:
    """A title, in lines that fit; a number and its % stay together."""
    ax.set_title(lines := fill(text.replace(" %", "\N{NO-BREAK SPACE}%"), TITLE_LETTERS))
    grow(ax, height=ROW * lines.count("\n"))


def legend_below(ax: Any, *others: Any, letters: int = LEGEND_LETTERS) -> None:
    """The legend below an axis, where it hides nothing; none where nothing has a label.

    Args:
        ax: whose lines and points have labels.
        others: axes at the same position, of another scale, or single handles.
        letters: that fit below it.
    """
    from matplotlib.transforms import ScaledTranslation

    handles, labels = ax.get_legend_handles_labels()
    for other in others:
        more = other.get_legend_handles_labels() if hasattr(other, "get_legend_handles_labels") else None
        handles += more[0] if more else [other]
        labels += more[1] if more else [other.get_label()]
    if not labels:
        return
    labels = [fill(label, letters - 8) for label in labels]
    widest = max(len(line) for label in labels for line in label.split("\n"))
    most = max(1, min(len(labels), letters // (widest + 8)))
    columns = -(-len(labels) // -(-len(labels) // most))  # as few as give as few lines
    below = BELOW + 11 * ax.get_xlabel().count("\n") if ax.get_xlabel() else BARE
    moved = ax.transAxes + ScaledTranslation(0, -below / 72, ax.get_figure().dpi_scale_trans)
    ax.legend(
        handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=moved, ncol=columns, fontsize=8,
        borderaxespad=0,
    )  # fmt: skip
    grow(ax, height=0.08 + 0.155 * sum(1 + label.count("\n") for label in labels) / columns)


def legend_of_panels(drawn: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """One legend below all panels of a figure, in as many columns as fit; the figure grows by its lines.

    Args:
        drawn: the figure, with constrained layout.
        handles, labels: of the lines.
    """
    across, down = drawn.get_size_inches()
    widest = max(map(len, labels))
    columns = max(1, min(MOST_COLUMNS, len(labels), int(across / (LETTER * widest + HANDLE))))
    drawn.legend(handles, labels, loc="outside lower center", ncol=columns, fontsize=8, handlelength=3)
    drawn.set_size_inches(across, down + 0.155 * (-(-len(labels) // columns) - 1))
