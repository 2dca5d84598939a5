"""Budgets, prices, and the user's goal for drafting."""
