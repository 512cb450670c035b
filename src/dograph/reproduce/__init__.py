"""The paper's tables and figures, trained again and compared with its printed numbers."""
