"""The network, in Flax: a backbone with the Condenser head."""
