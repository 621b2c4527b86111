"""Measuring a GPU with this project's own kernels: raw samples first, then tables, a profile and a check."""
