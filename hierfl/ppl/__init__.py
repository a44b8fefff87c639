"""The probabilistic language of a method file, and how a model is restricted to some clients."""
