"""`hierfl compare`: one way to fit a federation against others, client by client.

Runs of the same data and split, any number of seeds each. The first run's method is compared with every other: gains in
accuracy, NLL, Brier score and ECE (regression: RMSE, NLL, CRPS, coverage), paired by seed and client, with bootstrap
intervals; who gains, by size; and leave-one-out log predictive densities, where the runs have draws.
"""
