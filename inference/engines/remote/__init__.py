"""Clients at their own sites: requests and answers as bytes, whatever carries them."""
