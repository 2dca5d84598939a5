"""The promise on laws of time that nobody measured beforehand: see __main__.py."""
