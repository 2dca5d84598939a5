"""The client's loop: passes on committed tokens, while proposers draft."""
