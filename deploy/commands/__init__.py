"""One file for each verb of `outrider deploy`, with EXAMPLES for the end of its help and
run(options), which returns the exit code. The type of options defines the flags.
"""
