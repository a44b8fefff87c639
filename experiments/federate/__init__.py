"""A study over real sites: what all agree on, the server's part, a site's part."""
