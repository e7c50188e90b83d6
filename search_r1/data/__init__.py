"""Datasets: one module each; every one writes verl parquet and, where it has one, a corpus."""
