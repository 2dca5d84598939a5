"""`outrider prove`: equality and times of a target on this machine, in one report."""
