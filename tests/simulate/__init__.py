"""A seeded simulator of the whole system: real clients, wire, targets and engines on one clock."""
