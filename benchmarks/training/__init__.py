"""Training of the embedded models, and fitting of the shipped priors."""
