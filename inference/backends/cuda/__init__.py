"""CUDA graphs of complete forward passes. Not yet run on a GPU."""
