"""A client of a target: the connection, the draft, and the pool of the draft's rows."""
