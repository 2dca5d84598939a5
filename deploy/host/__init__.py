"""Programs that run on a target's host: its user data, and the check that ends an idle host."""
