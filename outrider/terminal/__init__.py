"""Commands that show texts in a terminal."""
