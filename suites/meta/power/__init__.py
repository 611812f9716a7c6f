"""The measured power of the suite: how many Scenarios it draws until it catches an engine."""
