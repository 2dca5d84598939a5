"""`outrider serve`: an OpenAI-compatible endpoint, and the chat page, on the user's machine.

It is not named `serve`: that is a function of the Python interface, which a module would replace.
"""
