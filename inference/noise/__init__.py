"""Noise for differential privacy: how much a fit needs, where it comes from, and what has been spent."""

from __future__ import annotations

from .accounting import Mechanism, composed_epsilon, noise_plan
from .plan import Part, Plan
from .privacy import Privacy
from .sources import KeyedNoise, NoiseSource, SystemNoise, noisy

__all__ = [
    "KeyedNoise",
    "Mechanism",
    "NoiseSource",
    "Part",
    "Plan",
    "Privacy",
    "SystemNoise",
    "composed_epsilon",
    "noise_plan",
    "noisy",
]
