"""Compiles targets of Outrider ahead of time: chooses the graphs, builds them for a device, and
stores them on disk or S3.
"""
