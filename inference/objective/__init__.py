"""The restricted model: its sites, ELBO and log joint."""
