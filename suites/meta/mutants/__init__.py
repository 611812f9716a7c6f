"""Wrong engines, which the suite must catch."""
