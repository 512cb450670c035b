"""What a model knows: loss per source."""
