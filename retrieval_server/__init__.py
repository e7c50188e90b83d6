"""The retrieval server: index a corpus, answer ``POST /retrieve`` over it.

``build`` writes an index directory, ``loading`` opens one, ``app`` serves it; ``cli`` is both on
the command line. A backend is one file in ``backends`` and one line in its table.
"""
