"""Ahead of time: which graphs a target needs, building them for a device, and keeping the result
on disk or S3.
"""
