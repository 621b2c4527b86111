"""Facts as data: GPUs, models and fitted cost profiles, one YAML file each; read through importlib.resources."""
