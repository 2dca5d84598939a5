"""Commands that generate text and show it in a terminal."""
