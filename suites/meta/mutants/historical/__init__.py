"""Wrong engines that once were released: each has one bug of an engine that people used, and says which."""
