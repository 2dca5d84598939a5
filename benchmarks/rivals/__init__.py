"""Outrider beside other engines on one machine: transformers, llama.cpp's server, OpenVINO GenAI
and AutoDraft. See docs/rivals.md.
"""
