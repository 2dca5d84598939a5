"""One file for each verb of `outrider deploy`. Each has EXAMPLES, which end its help, and
run(options), which returns the exit code. The type of options has the verb's flags.
"""
