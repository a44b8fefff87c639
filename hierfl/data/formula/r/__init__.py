"""What R, lme4 and glmmTMB write otherwise and mean the same by."""
