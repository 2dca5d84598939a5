"""Verbs of `outrider deploy`: each module has EXAMPLES for the end of its help, and run(options),
which returns the exit code. The type of options defines the flags.
"""
