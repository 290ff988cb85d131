"""The file format of packs: manifest, contents and signature.

Takes the path of a pack, returns its verified files. Reading a pack never runs its
code. Start with `contents.py`.
"""
