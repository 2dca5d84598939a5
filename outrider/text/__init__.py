"""Text generation: requests, the generation itself, and its records."""
