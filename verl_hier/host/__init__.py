"""The plugin host: specs of parts, discovery, loading, and what a part says about itself."""
