"""What clients do in a round: local steps."""
