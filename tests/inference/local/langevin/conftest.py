"""Five clients for chains."""

from __future__ import annotations

import pytest
from support.federations import slopes

from hierfl import Federation


@pytest.fixture
def fed() -> Federation:
    """Linear regressions of very different sizes."""
    return slopes([40, 12, 3, 25, 1])
