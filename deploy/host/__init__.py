"""Programs for a target's host: its user data, and the check that powers off an idle host."""
