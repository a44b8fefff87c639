"""Sums over sites that show nothing of one site: masks that cancel only in the sum that all sites have agreed on."""
