"""Engines, which compute for clients wherever these are."""
