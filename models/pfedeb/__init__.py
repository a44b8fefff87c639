"""PFedEB: personalised federated empirical Bayes.

``method`` is the model and what clients and server do. ``settings`` is what a user may choose, ``config`` what follows
from that and the network's head. ``population`` is the state and its draws. ``head_population`` and ``head_nodes`` are
the server's rules, ``at_nodes`` is a client's step at several populations, ``waiting`` holds the base at the start.
"""

from .method import PFedEB

__all__ = ["PFedEB"]
