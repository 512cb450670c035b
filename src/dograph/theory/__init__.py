"""The paper's theory as code: linearised attention, and gradients as an MMD between groups."""
