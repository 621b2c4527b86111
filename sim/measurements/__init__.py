"""Results of load generators against real servers: reading them, and holding a simulated run against them."""
