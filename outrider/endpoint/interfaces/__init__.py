"""Interfaces of OpenAI and Anthropic: requests, answers, errors."""
