"""Measures ways of decoding, with one measurement loop, one journal and one set of figures."""
