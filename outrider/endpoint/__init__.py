"""`outrider serve`: an OpenAI-compatible endpoint, and the chat page, on the user's machine."""
