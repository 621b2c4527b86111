"""Studies: many runs of one question. Sweeps over key paths, comparisons under common random numbers, capacity plans."""
