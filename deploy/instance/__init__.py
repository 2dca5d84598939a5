"""EC2 instances for Outrider: kinds, prices, subnets, and running instances."""
