"""Trees of tokens, candidates, and how they are accepted."""
