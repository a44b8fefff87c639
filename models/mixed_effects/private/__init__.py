"""Mixed models with differential privacy inside each client: noisy sums of products, and a likelihood that knows it."""
