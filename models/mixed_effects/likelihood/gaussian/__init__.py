"""A gaussian response: sums over rows, effects eliminated in closed form, exact draws."""
