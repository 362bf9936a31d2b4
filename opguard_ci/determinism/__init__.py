"""What pins a run's bits, and what of the machine can still change them."""
