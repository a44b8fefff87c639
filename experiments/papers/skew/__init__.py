"""Methods on digits of several domains (pFedV's Table 2)."""
