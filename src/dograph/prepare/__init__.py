"""Text to a prepared corpus. Importing this package pulls in neither torch nor any extra."""
