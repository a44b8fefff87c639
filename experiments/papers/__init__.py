"""The papers' tables and experiments."""
