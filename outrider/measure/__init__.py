"""Measures ways of decoding: one loop of turns, one journal and one meaning of each figure."""
