"""What the numbers of a linear head are called: by class and input."""

from __future__ import annotations

from collections.abc import Sequence

from .head import LinearHead


def head_names(head: LinearHead, classes: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Names of a head's numbers (d,), in their order: ``died: age``, ``died: bias``; of a regression ``age``.

    Args:
        head: of the network.
        classes: names of the outputs; none of a regression.
        inputs: names of the head's features; none where they have none.
    """
    features = list(inputs) or [f"feature {k}" for k in range(head.features)]
    rows = [f"contrast {k}" for k in range(head.rows)] if head.contrasts else list(classes)
    starts = [f"{name}: " for name in rows] if head.outputs > 1 else [""]
    bias = "bias" if "bias" not in features else "bias (of the head)"
    weights = [f"{start}{name}" for start in starts for name in features]
    return [*head.adapter_names, *weights, *[f"{start}{bias}" for start in starts] * head.bias]
