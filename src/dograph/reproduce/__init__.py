"""The paper's tables and figures, made again: trained, measured, set beside what it prints."""
