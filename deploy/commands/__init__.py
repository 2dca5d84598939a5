"""One file for each verb of `outrider deploy`. Each has OPTIONS (a model of its flags), EXAMPLES
(which end its help) and run(options), which returns the exit code.
"""
