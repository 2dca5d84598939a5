"""`outrider serve`: an OpenAI-compatible endpoint, and the chat page, on the user's machine.

The package is not named `serve`, since it would replace the function outrider.serve().
"""
