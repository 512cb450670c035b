"""The models of the paper, as Hugging Face configurations, and any causal LM by name or path."""
