"""The CPU as a device: a small transformer in NumPy is measured, fitted, simulated, and really served."""
