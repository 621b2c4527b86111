"""Measured servers against the simulator: one reader a data set, one replay for all, one table of errors."""
