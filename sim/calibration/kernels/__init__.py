"""CUDA sources of the kernels that `servesim calibrate measure` times; device code only, compiled where they run."""
