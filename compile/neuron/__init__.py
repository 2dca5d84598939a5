"""Builds targets for trn1 and inf2: NxD Core, and one NEFF a graph by neuronx-cc."""
