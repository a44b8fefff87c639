"""Run folders: what a run leaves on disk, how it is begun, and how it goes on."""
