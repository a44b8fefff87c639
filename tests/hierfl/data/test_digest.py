"""The federation's fingerprint."""

from __future__ import annotations

import numpy as np
from support.federations import blobs

from hierfl import Federation


def test_the_federated_digest_tells_splits_apart(small: Federation) -> None:
    assert small.digest() == blobs([23, 7, 2, 14, 14, 5, 9]).digest()
    assert small.digest() != blobs([23, 7, 2, 14, 14, 5, 9], seed=1).digest()
    assert small.digest() != small.select([1, 0, 2, 3, 4, 5, 6]).digest()
    assert np.isfinite(small.x.numpy()).all()
