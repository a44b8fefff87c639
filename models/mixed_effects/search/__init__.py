"""What the server does: criteria of the clients' sums, climbed, profiled, tested and explored."""
