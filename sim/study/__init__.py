"""Studies, many runs for one question: sweeps over key paths, comparisons with confidence, capacity plans."""
