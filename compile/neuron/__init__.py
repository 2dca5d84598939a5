"""Builds targets for trn1 and inf2: NxD Core, and one NEFF per graph by neuronx-cc. Tested with the
real source of NxD Core (tests/nxd) and with strict stubs; not yet run on hardware.
"""
