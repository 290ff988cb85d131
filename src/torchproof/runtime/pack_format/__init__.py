"""The files of a pack: manifest, contents, signature. Reading runs none of it."""
