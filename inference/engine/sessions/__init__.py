"""Sessions of a target: their texts, rules and candidates."""
