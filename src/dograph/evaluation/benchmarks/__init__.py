"""Nine downstream tasks: their documents, how they are asked, and two scorers that agree."""
