"""The client's loop: committed tokens, and drafting beside them."""
