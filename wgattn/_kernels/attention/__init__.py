"""Attention: the problem, the families that serve it, the choice among them, and how calls are cut and merged."""
