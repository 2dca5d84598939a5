"""Models that other libraries compute."""
