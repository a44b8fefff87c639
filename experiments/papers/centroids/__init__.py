"""pFedVMP and its ablations (its Tables 1 and 2)."""
