"""The operations of a compiled graph at real sizes: rules that a compiler holds them to, and what
they cost.
"""
