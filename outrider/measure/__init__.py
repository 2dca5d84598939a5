"""Measures decoding methods: one measurement loop, one journal format and one set of figures."""
