"""What y may be: a file for each response, which :mod:`.registry` finds by itself and reads without importing it."""
