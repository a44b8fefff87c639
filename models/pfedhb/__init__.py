"""PFedHB: what differs between clients, each kind of it a latent with a population of its own."""

from .method import PFedHB

__all__ = ["PFedHB"]
