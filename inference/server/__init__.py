"""The server: what is shared, and how it is updated from sums of messages."""
