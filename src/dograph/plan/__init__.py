"""The lab: small runs that inform a plan, made beside each other and kept by content."""
