"""Where steps go, if not down the gradient."""

import torch

from hierfl.inference.local.gradient_transforms import Clipped


def test_long_gradients_are_shortened_each_rows_by_itself():
    plain = {"a": torch.tensor([[[3.0, 0.0]], [[0.3, 0.0]], [[0.0, 0.0]]]), "b": torch.tensor([[4.0], [0.4], [0.0]])}
    clipped = Clipped(1.0)(lambda at, batch: plain, {}, {})
    torch.testing.assert_close(clipped["a"], torch.tensor([[[0.6, 0.0]], [[0.3, 0.0]], [[0.0, 0.0]]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([[0.8], [0.4], [0.0]]))
