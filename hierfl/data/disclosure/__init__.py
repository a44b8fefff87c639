"""Whether what a study asks of a site's rows would show single rows: the checks of a site's policy on its own data."""
