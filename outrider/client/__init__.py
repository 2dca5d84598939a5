"""A client of a target: its connection, its draft, and the rows that texts borrow."""
