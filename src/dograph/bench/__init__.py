"""dograph bench: what a step costs in every mode of the sketch, beside a plain one."""
