"""Files: artefacts, JSON records with errors that name a field, atomic writes."""
