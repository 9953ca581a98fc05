"""What is known of verl without running it: its servers, registered names, configuration classes and versions."""
