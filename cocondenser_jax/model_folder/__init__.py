"""Published models in folders: downloading, reading and describing them."""
