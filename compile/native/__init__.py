"""Builds targets for trn2 and trn3, by native PyTorch. Not yet run on hardware."""
