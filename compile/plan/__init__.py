"""The plan of a build: a target's graphs, the memory and time that they need, and a report."""
