"""The network, in Flax: BERT and RoBERTa backbones with the Condenser head."""
