"""Any Pyro model with a client plate: the posterior of its globals and of every client's latents, from sums."""
