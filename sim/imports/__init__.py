"""Serve commands of real engines as experiments: vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.x, llama.cpp's server."""
