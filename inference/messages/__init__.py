"""What clients send: its form, its sum, and what it passes on its way."""
