"""The lab: small runs that inform a plan, trained in parallel and kept by content key."""
