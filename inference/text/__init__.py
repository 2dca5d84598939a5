"""Conversion between text and tokens: tokenizers, chat templates, grammars."""
