"""How fast a checkpoint is written and read, beside plain files of as many bytes on the same disk."""
