"""Outrider beside other engines on one machine: transformers, llama.cpp's server and OpenVINO
GenAI. See docs/measured.md.
"""
