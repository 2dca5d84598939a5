"""Which graphs a target needs, what they need of a device, and how that is told."""
