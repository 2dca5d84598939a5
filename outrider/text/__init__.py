"""Texts: what is asked for, how it is made, and the record of it."""
