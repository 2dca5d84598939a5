"""The regret study: what a token takes with a growing tree, on a virtual clock."""
