"""Where runners can live besides this machine: the kinds of places, links to them, deputies here, remote ends there."""
