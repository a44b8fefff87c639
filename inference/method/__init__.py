"""What a method declares: its model, guide, settings, schedule, and where it starts from."""
