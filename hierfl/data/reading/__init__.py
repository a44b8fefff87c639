"""Tables as people have them: how a file is written, and what its columns are."""
