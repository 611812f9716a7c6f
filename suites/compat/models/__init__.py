"""Users' models: modules, parameters and their edits, at every stage."""
