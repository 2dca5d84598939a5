"""Targets on trn2 and trn3 by native PyTorch. No other backend uses this package."""
