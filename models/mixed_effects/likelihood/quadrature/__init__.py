"""Other responses: Newton's method to each client's mode, nodes around it, integrals."""
