"""Tables that stay at their sites: a data dictionary, sums for what looks at all rows, and each site's own part."""
