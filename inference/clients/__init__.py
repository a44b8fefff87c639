"""Some clients in the middle of a round: their values, minibatches, gradients."""
