"""Entry logs: format, files, the flush that fills them and the collector that rewrites them."""
