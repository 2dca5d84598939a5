"""`outrider prove`: equality, times and the promise of a target on this machine, in one report."""
