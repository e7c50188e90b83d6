"""The search agent and its tree: pure code without torch, ray, verl, vllm, faiss or fastapi.

Start with :mod:`search_r1.rollout`, which reads as the paper's pseudo-code.
"""

__version__ = "0.1.0"
