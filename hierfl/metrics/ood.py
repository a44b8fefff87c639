"""How well strange inputs are separated from familiar ones."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def predictive_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of predictive distributions (..., C): (...)."""
    return -(log_probs.exp() * log_probs.clamp_min(-1e30)).sum(-1)


def ood_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Area under the ROC curve of an uncertainty score: how surely a strange input scores above a familiar one."""
    from sklearn.metrics import roc_auc_score

    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(labels, np.r_[inside, outside]))
