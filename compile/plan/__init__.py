"""The plan of a build: a target's graphs, their needs of a device, and the report on both."""
