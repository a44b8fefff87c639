"""What a site can do with a study beside taking part: withdraw, forget, and a record of what was processed."""
