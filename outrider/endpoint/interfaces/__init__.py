"""The HTTP interfaces of OpenAI and Anthropic: requests, answers and errors."""
