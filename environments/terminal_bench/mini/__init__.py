"""The bundled task folders, all of this project's own making."""
