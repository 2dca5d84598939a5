"""Text and tokens of Outrider: tokenizers, chat templates, grammars."""
