"""The command line's roles: what main.py and compare_architectures.py do, put together from the
rooms below.
"""
