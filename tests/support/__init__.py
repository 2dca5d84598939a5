"""Fixtures, stand-ins and oracles of several test files: a module for each, with its docstring."""
