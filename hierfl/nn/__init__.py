"""Networks as pure functions whose parameters may carry a client dimension."""
