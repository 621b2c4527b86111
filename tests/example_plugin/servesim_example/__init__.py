"""An example of what other distributions can add to servesim."""
