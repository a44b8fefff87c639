"""What a fit with noise inside each client knows of its columns and its noise."""

from __future__ import annotations

from dataclasses import dataclass

from .columns import ScaledColumns
from .working import longest


@dataclass(frozen=True)
class PrivateFit:
    """Columns, and noise.

    Attributes:
        columns: of a row, scaled.
        patient_rows: rows of one patient.
        sds: of the noise of each release.
        binary: whether the response is, and there are rounds.
    """

    columns: ScaledColumns
    patient_rows: int
    sds: tuple[float, ...] = ()
    binary: bool = False

    @property
    def sd(self) -> float:
        """The standard deviation of the noise of the last release."""
        return self.sds[-1]

    @property
    def numbers(self) -> int:
        """The numbers of a message."""
        m = len(self.columns.names) + 1
        return m * (m + 1) // 2 if not self.binary else (m - 1) * (m + 2) // 2 + 1

    @property
    def sensitivity(self) -> float:
        """The largest change of the sums, in the norm, that one patient makes."""
        return self.patient_rows * self.row

    @property
    def row(self) -> float:
        """The norm of a row's part, at most."""
        return longest(self.columns.most - 1) if self.binary else self.columns.most
