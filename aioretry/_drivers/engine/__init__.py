"""An attempt over a connection that PyMongo has opened: what both drivers' rooms share."""
