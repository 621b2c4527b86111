"""Calibration: kernel tables in, fitted profiles out, with the error on shapes that no fit has seen."""
