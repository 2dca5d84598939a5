"""Tells what a target costs on EC2: prices with their source and date. `outrider deploy prices`
prints them.
"""
