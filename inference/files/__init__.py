"""Files: artefacts, JSON with errors that name the field, and atomic writes."""
