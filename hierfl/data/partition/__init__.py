"""How one data set is cut into clients."""
