"""What y may be: distributions of a response given its linear predictor, with derivatives."""
