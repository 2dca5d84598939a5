"""Builds targets for trn1 and inf2: NxD Core, and one NEFF a graph by neuronx-cc. Tested on the
real source of NxD Core (tests/nxd) and on strict stand-ins; not yet run on hardware.
"""
