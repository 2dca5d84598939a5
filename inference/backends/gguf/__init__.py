"""GGUF files, computed by llama.cpp."""
