"""Results as JSON: identity, schema, reading and comparison. Nothing here loads torch."""
