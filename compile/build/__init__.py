"""Building graphs for a device, stage by stage."""
