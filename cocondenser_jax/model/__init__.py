"""The network, in Flax: a BERT, RoBERTa, XLM-R or ModernBERT with the Condenser head."""
