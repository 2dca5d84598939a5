"""Verb doctor: reports findings with remedies, and returns an exit code for scripts."""
