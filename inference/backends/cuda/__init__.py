"""CUDA: graphs of whole forward passes. Not yet run on a GPU."""
