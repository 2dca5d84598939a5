"""Outrider beside other engines on one machine: transformers and llama.cpp's server. See
docs/rivals.md.
"""
