"""Budgets, prices, and the goal that drafting is steered to."""
