"""Tells what a target costs on EC2: prices with their source and date. `python -m deploy prices`
prints them.
"""
