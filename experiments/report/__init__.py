"""Pages and pictures of finished runs and comparisons."""
