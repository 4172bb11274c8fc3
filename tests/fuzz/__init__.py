"""What is read of others, fed with anything: targets, a mutator, and what was found."""
