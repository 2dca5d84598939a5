"""Targets on trn2 and trn3, by native PyTorch: nothing else needs what is in here."""
