"""What a site decides by itself, whatever a study says."""
