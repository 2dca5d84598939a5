"""Models that are computed by other libraries."""
