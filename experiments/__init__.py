"""The roof: command line, run folders, loading a method by path."""
