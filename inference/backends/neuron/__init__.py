"""NeuronCores of trn1 and inf2. Not yet run on hardware."""
