"""Text to tokens to batches. Importing this package pulls in neither torch nor any extra."""
