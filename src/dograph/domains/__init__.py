"""Model-perceived domains: finding them, what is known of them, from their weights to samples."""
