"""How long a round takes, beside the same work done otherwise."""
