"""Outrider beside other engines on one machine: see __main__.py."""
