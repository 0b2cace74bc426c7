"""A factory proposes pilots: how many, at which site, of which size, and why."""
