"""Langevin dynamics on a client's latents."""
