"""Tools of the fault campaign, which leave a line for everything that they do."""
