"""What a loss would be under a mixture that nobody has trained on, learned from those that were."""
