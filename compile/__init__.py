"""Compiles targets of Outrider ahead of time: chooses the graphs, builds them for a device, and
keeps the result on disk or S3.
"""
