"""Several levels inside clients, nested or crossed: all effects of a client together."""
