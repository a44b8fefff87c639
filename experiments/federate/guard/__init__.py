"""What a site decides for itself, whatever a study says."""
