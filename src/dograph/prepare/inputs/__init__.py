"""What a user names, read in order as records of text."""
