"""Sessions of a target: their tokens, rules and candidates."""
