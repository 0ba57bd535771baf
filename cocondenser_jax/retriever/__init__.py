"""The PyTorch side: fine-tuning, indexing, search and evaluation of retrievers."""
