"""Function calls: listing the functions in a prompt, and reading calls in the output."""
