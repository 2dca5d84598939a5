"""The trade-off curve: what speed, dollars and joules a token takes for each position of the
knob --cs, measured.
"""
